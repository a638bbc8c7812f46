"""Connect's framing: any split is the whole, bounds hold, and errors are read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sandbox.errors import ArgumentError, SizeLimitError, TransferError
from agent_sandbox.wire.connect import (
    CODE_OF_STATUS,
    MAX_MESSAGE_BYTES,
    ConnectCode,
    Envelope,
    EnvelopeDecoder,
    ErrorBody,
    encode_end,
    encode_envelope,
)


def test_an_envelope_is_five_bytes_and_the_message() -> None:
    assert encode_envelope(b"{}") == b"\0\0\0\0\x02{}"
    assert encode_end() == b"\x02\0\0\0\x02{}"
    end = encode_end(ErrorBody(code=ConnectCode.NOT_FOUND, message="m"))
    assert end[0] == 2
    assert json.loads(end[5:]) == {"error": {"code": "not_found", "message": "m"}}


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_any_split_gives_the_same_messages(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_envelope, messages)) + encode_end()
    decoder = EnvelopeDecoder()
    found: list[Envelope] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    decoder.finish()
    assert [one.data for one in found[:-1]] == messages
    assert [one.end for one in found] == [False] * len(messages) + [True]
    assert decoder.end_error(found[-1]) is None


@pytest.mark.parametrize("broken", [TransferError, ArgumentError])
@pytest.mark.parametrize(
    "stream",
    [
        b"\1\0\0\0\0",  # compressed, which was never offered
        b"\4\0\0\0\0",
        b"\x82\0\0\0\0",
        encode_end() + b"\0",
        encode_end() + encode_envelope(b"{}"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_breaks_the_protocol_raises_behind_what_was_whole_however_it_is_cut(
    stream: bytes, broken: type[TransferError], size: int
) -> None:
    whole = encode_envelope(b"1") + encode_envelope(b"2") + stream
    decoder = EnvelopeDecoder(broken=broken)
    found: list[Envelope] = []
    with pytest.raises(broken):  # noqa: PT012 - how many calls it takes is of no interest
        while True:
            found += decoder.feed(whole[:size])
            whole = whole[size:]
    assert [one.data for one in found if not one.end] == [b"1", b"2"]
    with pytest.raises(broken):
        decoder.finish()


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_cut_stream_is_never_whole(cut: int) -> None:
    decoder = EnvelopeDecoder()
    decoder.feed(encode_end()[:-cut])
    with pytest.raises(TransferError):
        decoder.finish()


def test_a_stream_without_its_end_is_cut_and_a_request_is_not() -> None:
    decoder = EnvelopeDecoder()
    decoder.feed(encode_envelope(b"{}"))
    decoder.finish(needs_end=False)
    with pytest.raises(TransferError):
        decoder.finish()


def test_a_long_message_is_refused_by_its_length_alone() -> None:
    decoder = EnvelopeDecoder(max_message_bytes=10)
    assert decoder.feed(encode_envelope(b"x" * 10))
    with pytest.raises(SizeLimitError) as raised:
        decoder.feed(b"\0\0\0\0\x0b")
    assert raised.value.limit == 10
    with pytest.raises(SizeLimitError):
        EnvelopeDecoder().feed(b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b'{"error":1}', b'{"error":{}}'])
def test_an_end_that_is_none_is_broken(data: bytes) -> None:
    with pytest.raises(TransferError):
        EnvelopeDecoder().end_error(Envelope(data, end=True))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"code":"not_found","message":"m"}', ConnectCode.NOT_FOUND),
        (b'{"code":"not_found","details":[{"type":"x"}]}', ConnectCode.NOT_FOUND),
        (b'{"code":"of the future"}', ConnectCode.UNKNOWN),
    ],
)
def test_a_code_that_is_not_known_is_unknown(body: bytes, code: ConnectCode) -> None:
    assert ErrorBody.model_validate_json(body).connect_code is code


def test_every_status_has_a_code_of_the_protocol() -> None:
    assert set(CODE_OF_STATUS.values()) <= set(ConnectCode)
