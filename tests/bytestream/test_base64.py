from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.bytestream import ALPHABET

from agent_sandbox.errors import AgentSandboxError, Base64Error, SizeLimitError
from agent_sandbox.limits import MAX_ENCODED_CHARS, MAX_FILE_BYTES

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "base64.json").read_text("utf-8")
)


def offset(core: ModuleType, text: object) -> int:
    """Refuse `text` with a fixed message and return where."""
    with pytest.raises(Base64Error) as caught:
        core.b64decode(text)
    with pytest.raises(Base64Error) as again:
        core.b64decode_sha256(text)
    assert again.value.offset == caught.value.offset
    assert str(caught.value) == Base64Error.text
    assert (caught.value.code, caught.value.category) == ("E2003", "invalid_input")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AgentSandboxError)
    assert type(caught.value.offset) is int
    return caught.value.offset


@pytest.mark.parametrize("row", VECTORS["accept"], ids=lambda row: row["encoded"][:16])
def test_an_accepted_vector_gives_its_bytes_and_digest(
    core: ModuleType, row: dict[str, str]
) -> None:
    raw = bytes.fromhex(row["hex"])
    text = row["encoded"]
    assert core.b64decode(text) == raw
    assert core.b64decode(text.encode()) == raw
    assert core.b64decode_sha256(text) == (raw, row["sha256"])
    assert core.b64encode(raw) == text
    assert core.b64encode_sha256(raw) == (text, row["sha256"])


@pytest.mark.parametrize("row", VECTORS["reject"], ids=lambda row: ascii(row["encoded"][:16]))
def test_a_rejected_vector_is_refused(core: ModuleType, row: dict[str, str]) -> None:
    offset(core, row["encoded"])


@pytest.mark.parametrize(
    ("text", "raw"),
    [("", b""), ("QQ==", b"A"), ("QUI=", b"AB"), ("QUJD", b"ABC"), ("+/+/", b"\xfb\xff\xbf")],
)
def test_b01_to_b05_plain_texts_decode(core: ModuleType, text: str, raw: bytes) -> None:
    result = core.b64decode(text)
    assert result == raw
    assert type(result) is bytes
    assert core.b64encode(raw) == text


@pytest.mark.parametrize("text", ["QR==", "Qf==", "AB=="])
def test_b06_four_unused_bits_must_be_zero(core: ModuleType, text: str) -> None:
    assert offset(core, text) == 1


@pytest.mark.parametrize("text", ["QUJ=", "QUL=", "AAB=", "//9="])
def test_b07_two_unused_bits_must_be_zero(core: ModuleType, text: str) -> None:
    assert offset(core, text) == 2


def test_b08_exactly_4_and_16_last_symbols_are_canonical(core: ModuleType) -> None:
    def accepted(prefix: str, padding: str) -> list[str]:
        kept = []
        for symbol in ALPHABET:
            try:
                core.b64decode(prefix + symbol + padding)
            except Base64Error as error:
                assert error.offset == len(prefix)  # noqa: PT017  # both outcomes are right
            else:
                kept.append(symbol)
        return kept

    assert accepted("A", "==") == list("AQgw")
    assert accepted("AA", "=") == list("AEIMQUYcgkosw048")
    assert accepted("QUJDA", "==") == list("AQgw")


@pytest.mark.parametrize(("text", "where"), [("QUJD=", 5), ("QUJD==", 6), ("QUJD====", 4)])
def test_b09_surplus_padding_is_refused(core: ModuleType, text: str, where: int) -> None:
    assert offset(core, text) == where


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("QQ", 2),
        ("QQ=", 3),
        ("Q", 1),
        ("Q===", 1),
        ("=", 1),
        ("====", 0),
        ("=QQ=", 0),
        ("Q=Q=", 1),
        ("QQ=Q", 2),
        ("QQ==QQ==", 2),
        ("QUI=QUJD", 3),
    ],
)
def test_b10_to_b12_wrong_lengths_and_padding_are_refused_at_the_first_fault(
    core: ModuleType, text: str, where: int
) -> None:
    assert offset(core, text) == where


@pytest.mark.parametrize("space", ["\n", "\r\n", "\t", " ", "\v", "\f", "\x1c", "\x85"])
@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_b13_white_space_is_refused_wherever_it_stands(
    core: ModuleType, space: str, place: int
) -> None:
    text = "QUJD"[:place] + space + "QUJD"[place:]
    assert offset(core, text) == len(text)  # the length is looked at first
    padded = text + "QUJD"[: -len(text) % 4]
    assert offset(core, padded) == place


def test_b13_line_breaks_as_in_mime_are_refused(core: ModuleType) -> None:
    for end in ("\n", "\r\n"):
        wrapped = base64.encodebytes(bytes(171)).decode().replace("\n", end)
        padded = wrapped + "A" * (-len(wrapped) % 4)
        assert offset(core, padded) == 76


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("-_-_", 0),
        ("__8=", 0),
        ("QUJ\0", 3),
        ("\0\0\0\0", 0),
        ("\uff31UJD", 0),
        ("QUJД", 3),
        ("\ufeffUJD", 0),
        ("QUJ\xa0", 3),
        ("Q\udc80JD", 1),
        ("QUJ\U0001d400", 3),
        ("QQ=\udfff", 2),
        ("QUJ\u0141", 3),  # its lowest byte is `A`
        ("QUJ\U00010041", 3),
        ("QUJD\u013d\u013d\u013d\u013d", 4),  # their lowest byte is `=`
        ("data:text/plain;base64,QUJDQ", 4),
        ("QUJ#", 3),
        (".UJD", 0),
    ],
)
def test_b14_to_b18_other_symbols_are_refused_at_their_code_point(
    core: ModuleType, text: str, where: int
) -> None:
    assert offset(core, text) == where


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_utf8_are_refused_at_their_byte(core: ModuleType, kind: Any) -> None:
    assert offset(core, kind("QU\xa0D".encode()[:4])) == 2
    assert offset(core, kind(b"QUJ\x80")) == 3
    assert offset(core, kind(b"QUJD\xff\xff\xff\xff")) == 4


def test_b19_to_b24_the_largest_file_passes_and_one_byte_more_does_not(core: ModuleType) -> None:
    raw = os.urandom(MAX_FILE_BYTES)
    text = base64.b64encode(raw).decode()
    assert len(text) == MAX_ENCODED_CHARS == 1_398_104
    assert text.endswith("==")
    assert core.b64decode(text, max_bytes=MAX_FILE_BYTES) == raw

    def refusal(text: str) -> Exception:
        with pytest.raises((Base64Error, SizeLimitError)) as caught:
            core.b64decode(text, max_bytes=MAX_FILE_BYTES)
        return caught.value

    for longer in (raw + b"x", raw + b"xy"):
        error = refusal(base64.b64encode(longer).decode())
        assert isinstance(error, SizeLimitError)
        assert error.limit == MAX_FILE_BYTES
        assert error.code == "E3001"
    short = refusal(text[:-1])
    assert isinstance(short, Base64Error)
    assert short.offset == 1_398_103
    for surplus in ("A", "AAAA", "\udc80", "!" * 5_000_000):
        assert isinstance(refusal(text + surplus), SizeLimitError)


def test_the_checks_come_in_the_order_of_the_contract(core: ModuleType) -> None:
    def refusal(text: str, cap: int) -> type[Exception]:
        with pytest.raises((Base64Error, SizeLimitError)) as caught:
            core.b64decode(text, max_bytes=cap)
        return caught.type

    assert refusal("!!!!!", 3) is SizeLimitError  # longer than 4 symbols
    assert refusal("!!!", 1) is Base64Error  # not a multiple of 4, whatever it would give
    assert refusal("!!!!", 2) is SizeLimitError  # three bytes by its padding, before the symbols
    assert refusal("!!!=", 1) is SizeLimitError
    assert refusal("====", 0) is SizeLimitError
    assert refusal("é===", 0) is SizeLimitError
    assert refusal("!!==", 1) is Base64Error
    assert refusal("A", 0) is SizeLimitError
    assert core.b64decode("", max_bytes=0) == b""


@pytest.mark.parametrize("cap", [2**63 - 1, 2**63, 2**64 - 1])
def test_huge_caps_are_caps_like_others(core: ModuleType, cap: int) -> None:
    assert core.b64decode("QUJD", max_bytes=cap) == b"ABC"
    assert offset(core, "QUJ!") == 3


@pytest.mark.parametrize("place", [0, 15, 16, 31, 32, 63, 64, 65, 511, 1023, 1024, -1])
@pytest.mark.parametrize("bad", ["!", "=", "-", "\0", "é", "Ł", "\U0001d400"])
@pytest.mark.parametrize("length", [1024 + 4, 80_000])
def test_b26_a_bad_symbol_is_named_wherever_it_stands(
    core: ModuleType, place: int, bad: str, length: int
) -> None:
    if place == -1:
        place = length - 1
    text = "QUJD" * (length // 4)
    changed = text[:place] + bad + text[place + 1 :]
    if bad == "=" and place == length - 1:
        assert core.b64decode(changed[:-2] + "I=") == b"ABC" * (length // 4 - 1) + b"AB"
        return
    # A second fault behind the first changes nothing.
    assert offset(core, changed) == place
    if place < length - 8:
        assert offset(core, changed[:-8] + "!!!!" + changed[-4:]) == place


def test_every_byte_in_every_place_of_two_blocks_is_judged_alike(cores: list[ModuleType]) -> None:
    text = base64.b64encode(os.urandom(94))  # 128 symbols, padded by two
    for place in range(len(text)):
        for value in range(256):
            changed = text[:place] + bytes([value]) + text[place + 1 :]
            results = set()
            for core in cores:
                try:
                    results.add(core.b64decode(changed))
                except Base64Error as error:
                    results.add(error.offset)
            assert len(results) == 1, (place, value)
            (result,) = results
            if isinstance(result, bytes):
                assert base64.b64encode(result) == changed


def test_every_length_round_trips(core: ModuleType) -> None:
    for size in [*range(400), 12_287, 12_288, 12_289, 24_576, 65_535, 300_001]:
        raw = os.urandom(size)
        text = core.b64encode(raw)
        assert text == base64.b64encode(raw).decode()
        assert type(text) is str
        assert text.isascii()
        assert core.b64decode(text) == raw
        assert core.b64decode(text, max_bytes=size) == raw
        if size:
            with pytest.raises(SizeLimitError):
                core.b64decode(text, max_bytes=size - 1)


def test_results_are_ordinary_objects(core: ModuleType) -> None:
    raw = os.urandom(1000)
    text = core.b64encode(raw)
    assert {text: 1}[base64.b64encode(raw).decode()] == 1
    assert hash(core.b64decode(text)) == hash(raw)
    assert text + "x" == base64.b64encode(raw).decode() + "x"
    assert text.encode("utf-8") == base64.b64encode(raw)
    assert core.b64decode(text) + b"\0" == raw + b"\0"
