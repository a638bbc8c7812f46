"""`OutputBuffer`: the first and the last part of anything, in bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sandbox.output import OutputBuffer


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 60))
def test_any_split_holds_the_same_two_ends(chunks: list[bytes], limit: int) -> None:
    buffer = OutputBuffer(limit)
    for chunk in chunks:
        buffer.append(chunk)
        assert len(buffer) <= limit
    whole = b"".join(chunks)
    output = buffer.output()
    assert buffer.total_bytes == len(whole)
    if len(whole) <= limit:
        assert (output.head, output.omitted_bytes, output.tail) == (whole, 0, b"")
        return
    first = limit // 2
    assert output.head == whole[:first]
    assert output.tail == whole[len(whole) - (limit - first) :]
    assert output.omitted_bytes == len(whole) - limit


@given(st.binary(max_size=100), st.integers(0, 60), st.integers(0, 120), st.integers(1, 50))
def test_reading_from_an_offset_gives_what_stood_there(
    whole: bytes, limit: int, offset: int, most: int
) -> None:
    buffer = OutputBuffer(limit)
    buffer.append(whole)
    start, data = buffer.read(offset, most)
    assert start >= min(offset, len(whole))
    assert data == whole[start : start + len(data)]
    assert len(data) <= most
    if len(whole) <= limit:
        assert (start, data) == (min(offset, len(whole)), whole[offset : offset + most])


def test_reading_on_reaches_the_end() -> None:
    buffer = OutputBuffer(10)
    buffer.append(bytes(range(30)))
    seen, at = b"", 0
    while True:
        at, data = buffer.read(at, 3)
        if not data:
            break
        seen += data
        at += len(data)
    assert seen == bytes([*range(5), *range(25, 30)])
    assert at == 30


def test_a_gap_that_was_there_before_stays_one_gap() -> None:
    buffer = OutputBuffer(100)
    buffer.append(b"head")
    buffer.skip(1_000)
    buffer.append(b"tail")
    output = buffer.output()
    assert (output.head, output.omitted_bytes, output.tail) == (b"head", 1_000, b"tail")
    assert buffer.total_bytes == 1_008


@pytest.mark.parametrize(
    ("limit", "error"), [(-1, ValueError), (True, TypeError), (1.0, TypeError)]
)
def test_a_limit_that_is_none_is_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        OutputBuffer(limit)
