"""`read_file`, `write_file` and `list_files`."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_sandbox.errors import (
    ArgumentError,
    FileKindError,
    FileMissingError,
    PathError,
    SizeLimitError,
    TextEncodingError,
)
from agent_sandbox.limits import MAX_FILE_BYTES

if TYPE_CHECKING:
    from tests.mcp_server.conftest import Caller


@pytest.mark.parametrize(
    "text", ["", "hé\n", "a\r\nb\n", "\ufeffbom", "\u202e\x1b[0m", "\0", "𝄞" * 9]
)
async def test_text_comes_back_as_it_was_written(call: Caller, text: str) -> None:
    data = text.encode()
    digest = hashlib.sha256(data).hexdigest()
    wrote = await call.fields("write_file", path="/tmp/t.txt", content=text)
    assert (wrote["bytes_written"], wrote["sha256"]) == (len(data), digest)
    read = await call.fields("read_file", path="/tmp/t.txt")
    assert read == {
        "success": True,
        "content": text,
        "bytes_read": len(data),
        "sha256": digest,
        "sandbox_id": call.sandbox_id,
    }


async def test_text_is_repeated_in_the_text_block_for_clients_that_show_only_that(
    call: Caller,
) -> None:
    await call.fields("write_file", path="/tmp/t.txt", content="shown")
    result = await call("read_file", path="/tmp/t.txt")
    assert json.loads(result.content[0].text)["content"] == "shown"  # type: ignore[union-attr]


@pytest.mark.parametrize("character", ["x", "\0", '"', "é"])
async def test_the_largest_text_fits_both_ways_however_much_it_is_escaped(
    call: Caller, character: str
) -> None:
    text = character * (MAX_FILE_BYTES // len(character.encode()))
    if call.client.protocol_version and character == "\0":
        # Six bytes of JSON each: over HTTP that is above the SDK's 4 MiB for a request.
        encoded = base64.b64encode(text.encode()).decode()
        await call.fields("upload_file", path="/tmp/large.txt", content_base64=encoded)
    else:
        await call.fields("write_file", path="/tmp/large.txt", content=text)
    assert (await call.fields("read_file", path="/tmp/large.txt"))["content"] == text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"content": "x" * (MAX_FILE_BYTES + 1)}, SizeLimitError),
        ({"content": "é" * (MAX_FILE_BYTES // 2 + 1)}, SizeLimitError),
        ({"content": b"bytes".decode(), "path": "t.txt"}, PathError),
        ({"content": None}, ArgumentError),
        ({"content": 1}, ArgumentError),
        ({"encoding": "latin-1"}, ArgumentError),
        ({"path": "/tmp"}, FileKindError),
    ],
)
async def test_a_bad_write_changes_nothing(
    call: Caller, arguments: dict[str, Any], error: type[Any]
) -> None:
    await call.fields("write_file", path="/tmp/kept.txt", content="kept")
    result = await call("write_file", **{"path": "/tmp/kept.txt", "content": "new", **arguments})
    assert result.is_error
    assert isinstance(result.structured_content, dict)
    assert result.structured_content["error"] == error.text
    assert (await call.fields("read_file", path="/tmp/kept.txt"))["content"] == "kept"


@pytest.mark.parametrize("data", [b"\xff", b"abc\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
async def test_what_is_not_utf8_is_left_to_the_binary_tools(call: Caller, data: bytes) -> None:
    encoded = base64.b64encode(data).decode()
    await call.fields("upload_file", path="/tmp/not.txt", content_base64=encoded)
    result = await call("read_file", path="/tmp/not.txt")
    assert result.is_error
    assert isinstance(result.structured_content, dict)
    assert result.structured_content["error"] == TextEncodingError.text
    assert "download_file" in TextEncodingError.text


async def test_a_listing_is_sorted_and_shows_what_each_entry_is(call: Caller) -> None:
    for name in ("b.txt", "a b", "c\nd", "sub/inner"):
        await call.fields("write_file", path=f"/tmp/listing/{name}", content=name)
    listed = await call.fields("list_files", path="/tmp/listing/")
    assert listed["path"] == "/tmp/listing"
    assert listed["omitted_entries"] == 0
    kinds = [(entry["name"], entry["type"]) for entry in listed["entries"]]
    assert kinds == [
        ("a b", "file"),
        ("b.txt", "file"),
        ("c\nd", "file"),
        ("sub", "directory"),
    ]
    assert listed["entries"][1]["size_bytes"] == 5
    assert set(listed["entries"][1]) == {"name", "type", "size_bytes", "mode", "modified_at"}


@pytest.mark.parametrize(
    ("path", "error"),
    [("/nothing", FileMissingError), ("/tmp/file", FileKindError), ("tmp", PathError)],
)
async def test_a_listing_of_no_directory_fails(call: Caller, path: str, error: type[Any]) -> None:
    await call.fields("write_file", path="/tmp/file", content="")
    result = await call("list_files", path=path)
    assert result.is_error
    assert isinstance(result.structured_content, dict)
    assert result.structured_content["error"] == error.text


async def test_a_listing_that_is_too_long_for_an_answer_says_what_it_left_out(
    call: Caller,
) -> None:
    from agent_sandbox.mcp_server.tools import listing

    entries = [{"name": "x" * 1000}] * 2000
    kept = listing.fitting(entries)
    assert 900 < len(kept) < 1100
