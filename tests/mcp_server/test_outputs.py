"""Output of commands as fields of results: nothing is lost but what is said to be left out."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sandbox.limits import MAX_STDIO_LINE_BYTES
from agent_sandbox.mcp_server.outputs import OUTPUT_BYTES, result_fields, window
from agent_sandbox.models import CommandResult
from agent_sandbox.output import OutputBuffer
from agent_sandbox.toolkit.results import to_result

HALF = OUTPUT_BYTES // 2


def held(data: bytes, limit: int = 10 * OUTPUT_BYTES) -> CommandResult:
    """Return a result as the SDK builds it, of a service that holds `limit` bytes."""
    buffer = OutputBuffer(limit)
    buffer.append(data)
    out = buffer.output()
    return CommandResult(
        exit_code=0,
        stdout_bytes=out.head + out.tail,
        stdout_omitted_bytes=out.omitted_bytes,
        stdout_head_bytes=len(out.head),
    )


def exact(fields: dict[str, Any], name: str) -> bytes:
    encoded = fields.get(f"{name}_base64")
    return fields[name].encode() if encoded is None else base64.b64decode(encoded)


@given(st.binary(max_size=100))
def test_short_output_is_whole_and_exact(data: bytes) -> None:
    fields = result_fields(held(data))
    assert exact(fields, "stdout") == data
    assert (fields["stdout_omitted_bytes"], fields["stderr"]) == (0, "")
    assert "stderr_base64" not in fields


@pytest.mark.parametrize("limit", [10 * OUTPUT_BYTES, OUTPUT_BYTES, 1_000])
def test_long_text_keeps_its_two_ends_and_says_what_is_between(limit: int) -> None:
    data = b"".join(b"%09d\n" % number for number in range(20_000))
    fields = result_fields(held(data, limit))
    omitted = fields["stdout_omitted_bytes"]
    first, _, last = fields["stdout"].partition(f"\n[... {omitted} bytes left out ...]\n")
    assert data.startswith(first.encode())
    assert data.endswith(last.encode())
    assert len(first) + len(last) + omitted == len(data)
    assert len(first) == min(limit, OUTPUT_BYTES) // 2
    assert "stdout_base64" not in fields


@pytest.mark.parametrize("shift", range(4))
def test_a_gap_in_the_middle_of_a_character_makes_no_text_binary(shift: int) -> None:
    data = b"x" * shift + "\U0001f600".encode() * OUTPUT_BYTES
    fields = result_fields(held(data, 1_001))
    assert "stdout_base64" not in fields
    omitted = fields["stdout_omitted_bytes"]
    text = fields["stdout"].replace(f"\n[... {omitted} bytes left out ...]\n", "")
    assert len(text.encode()) + omitted == len(data)
    assert set(text) <= {"x", "\U0001f600"}


def test_long_binary_output_is_exact_on_both_sides_of_the_gap() -> None:
    data = bytes(range(256)) * 1_000
    fields = result_fields(held(data))
    kept, at = base64.b64decode(fields["stdout_base64"]), fields["stdout_head_bytes"]
    assert (kept[:at], kept[at:]) == (data[:HALF], data[-HALF:])
    assert fields["stdout_omitted_bytes"] == len(data) - OUTPUT_BYTES


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("byte", [b"\0", b"\xff", b'"'])
def test_the_largest_result_fits_into_a_line_however_it_is_escaped(
    version: str, byte: bytes
) -> None:
    streams = held(byte * 10 * OUTPUT_BYTES)
    both = streams.model_copy(
        update={
            "stderr_bytes": streams.stdout_bytes,
            "stderr_head_bytes": streams.stdout_head_bytes,
            "stderr_omitted_bytes": streams.stdout_omitted_bytes,
        }
    )
    line = to_result(result_fields(both), version).model_dump_json(by_alias=True)
    assert len(line) + 1_000 <= MAX_STDIO_LINE_BYTES


def walk(result: CommandResult) -> tuple[bytes, int]:
    """Read from the beginning to the end; return the bytes and how many were gone."""
    read, gone, offset = b"", 0, 0
    while True:
        fields = window(result, offset, growing=False)
        part = exact(fields, "output")
        assert fields["next_offset"] == fields["offset"] + len(part)
        read, gone = read + part, gone + fields["omitted_bytes"]
        if not part:
            assert fields["next_offset"] == fields["total_bytes"]
            return read, gone
        assert fields["next_offset"] > offset
        offset = fields["next_offset"]


@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(range(256)) * 700, "a\u00e9\u20ac\U0001f600".encode() * 20_000],
    ids=["nothing", "one", "binary", "characters"],
)
@pytest.mark.parametrize("limit", [10 * OUTPUT_BYTES, 2 * OUTPUT_BYTES + 1, 1_003])
def test_reading_on_from_next_offset_meets_every_byte_once(data: bytes, limit: int) -> None:
    read, gone = walk(held(data, limit))
    assert len(read) + gone == len(data)
    if not gone:
        assert read == data
    else:
        assert data.startswith(read[: limit // 2])
        assert data.endswith(read[limit // 2 :])


def test_text_is_not_cut_within_a_character_while_more_follows() -> None:
    data = b"x" + "\u20ac".encode() * OUTPUT_BYTES
    fields = window(held(data), 0, growing=False)
    assert "output_base64" not in fields
    assert fields["next_offset"] == OUTPUT_BYTES
    begun = held("\u20ac".encode()[:2])
    assert window(begun, 0, growing=True)["next_offset"] == 0
    assert exact(window(begun, 0, growing=False), "output") == "\u20ac".encode()[:2]
    assert exact(window(held(b"\xff"), 0, growing=True), "output") == b"\xff"


@pytest.mark.parametrize("offset", [5, 6, 2**53 - 1])
def test_beyond_the_end_there_is_nothing_and_the_offset_says_where_the_end_is(offset: int) -> None:
    fields = window(held(b"12345"), offset, growing=True)
    assert (fields["output"], fields["offset"], fields["next_offset"]) == ("", 5, 5)
    assert fields["omitted_bytes"] == 0
