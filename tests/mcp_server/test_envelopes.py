"""Lines, ids and messages: the pure part of the transports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from agent_sandbox.mcp_server.envelopes import (
    KEPT_BYTES,
    LineSplitter,
    LongLine,
    Refusal,
    canonical_id,
    parse_message,
    peek_id,
)

LIMIT = 20
text = st.binary(max_size=60).map(lambda data: data.replace(b"x", b"\n"))


@given(st.lists(text, max_size=6), st.data())
def test_any_split_of_a_stream_gives_the_lines_of_the_whole(
    pieces: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(pieces)
    expected = [
        line if len(line) <= LIMIT else LongLine(line[:KEPT_BYTES], line[-KEPT_BYTES:])
        for line in whole.split(b"\n")[:-1]
    ]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    splitter = LineSplitter(LIMIT)
    lines = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        lines += splitter.feed(whole[start:end])
    assert lines == expected


def test_of_a_long_line_only_the_ends_are_kept() -> None:
    splitter = LineSplitter(LIMIT)
    for _ in range(1000):
        assert splitter.feed(b"a" * 10_000) == []
    (line,) = splitter.feed(b"z\n")
    assert line == LongLine(b"a" * KEPT_BYTES, b"a" * (KEPT_BYTES - 1) + b"z")


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
names = st.sampled_from(["jsonrpc", "method", "params", "id", 'a"id"', "result"]) | st.text()


@given(st.dictionaries(names, values, max_size=6), st.booleans(), st.integers(0, 2))
def test_an_id_that_is_found_is_the_objects_own(
    message: dict[str, object], ascii_only: bool, indent: int
) -> None:
    line = json.dumps(message, ensure_ascii=ascii_only, indent=indent or None).encode()
    found = peek_id(line[:KEPT_BYTES], line[-KEPT_BYTES:])
    own = message.get("id")
    if found is not None:
        assert found == own
        assert type(found) is type(own)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("request_id", [0, -5, 2**70, "x", 'quo"te', "\u2603", ""])
def test_an_id_at_either_end_is_found(place: str, request_id: object) -> None:
    big = {"params": {"id": "wrong", "data": 'x"id":1' * 5000}}
    small = {"jsonrpc": "2.0", "id": request_id, "method": "m"}
    line = json.dumps({**small, **big} if place == "first" else {**big, **small}).encode()
    assert peek_id(line[:KEPT_BYTES], line[-KEPT_BYTES:]) == request_id


@pytest.mark.parametrize(
    "same", [(1, "1", "01", " 1", "1 ", "+1"), (10, "1_0"), (-3, "-3"), ("x",), (2**70, str(2**70))]
)
def test_ids_that_the_sdk_takes_for_one_are_one(same: tuple[int | str, ...]) -> None:
    assert len({canonical_id(one) for one in same}) == 1


@pytest.mark.parametrize("different", [(1, "1.0"), ("x", "X"), ("", " "), (1, "one")])
def test_other_ids_stay_apart(different: tuple[int | str, ...]) -> None:
    assert len({canonical_id(one) for one in different}) == 2


def test_a_number_too_long_for_an_int_stays_a_text() -> None:
    assert canonical_id("9" * 5000) == "9" * 5000


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}', JSONRPCRequest),
        (b'{"jsonrpc":"2.0","method":"m"}', JSONRPCNotification),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', JSONRPCResponse),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', JSONRPCError),
        (b'{"jsonrpc":"2.0"}', Refusal),
        (b'{"jsonrpc":"2.0","id":1,"result":5}', Refusal),
    ],
)
def test_a_message_is_parsed_into_its_kind(line: bytes, kind: type) -> None:
    assert type(parse_message(line)) is kind
