"""`upload_file` and `download_file`, through the official client on both transports and eras."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from agent_sandbox.errors import (
    ArgumentError,
    Base64Error,
    DeclarationError,
    FileKindError,
    FileMissingError,
    PathError,
    SandboxNotFoundError,
    SizeLimitError,
)
from agent_sandbox.limits import MAX_ENCODED_CHARS, MAX_FILE_BYTES
from agent_sandbox.mcp_server.tools._words import LARGER_FILES_IN

if TYPE_CHECKING:
    from tests.mcp_server.conftest import Caller


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_the_two_bytes_of_the_documentation_go_up_and_come_back(call: Caller) -> None:
    up = await call.fields("upload_file", path="/tmp/artifact.bin", content_base64="AP8=")
    digest = hashlib.sha256(b"\x00\xff").hexdigest()
    assert up == {
        "success": True,
        "bytes_written": 2,
        "sha256": digest,
        "sandbox_id": call.sandbox_id,
    }
    down = await call.fields("download_file", path="/tmp/artifact.bin")
    assert down == {
        "success": True,
        "content_base64": "AP8=",
        "bytes_read": 2,
        "sha256": digest,
        "sandbox_id": call.sandbox_id,
    }


async def test_the_largest_file_comes_back_with_the_same_digest(call: Caller) -> None:
    data = os.urandom(MAX_FILE_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    text = encoded(data)
    assert len(text) == MAX_ENCODED_CHARS
    up = await call.fields(
        "upload_file",
        path="/tmp/largest.bin",
        content_base64=text,
        size_bytes=MAX_FILE_BYTES,
        sha256=digest,
    )
    assert (up["bytes_written"], up["sha256"]) == (MAX_FILE_BYTES, digest)
    down = await call.fields("download_file", path="/tmp/largest.bin")
    assert base64.b64decode(down["content_base64"], validate=True) == data
    assert (down["bytes_read"], down["sha256"]) == (MAX_FILE_BYTES, digest)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 1000, bytes(range(256)), b"\xff\xfe\n\r\n"])
async def test_any_bytes_survive(call: Caller, data: bytes) -> None:
    await call.fields("upload_file", path="/tmp/any.bin", content_base64=encoded(data))
    down = await call.fields("download_file", path="/tmp/any.bin")
    assert base64.b64decode(down["content_base64"]) == data
    assert down["bytes_read"] == len(data)


async def test_an_upload_replaces_what_is_there(call: Caller) -> None:
    await call.fields("upload_file", path="/tmp/twice.bin", content_base64=encoded(b"long" * 99))
    await call.fields("upload_file", path="/tmp/twice.bin", content_base64=encoded(b"short"))
    down = await call.fields("download_file", path="/tmp/twice.bin")
    assert base64.b64decode(down["content_base64"]) == b"short"


async def test_32_uploads_at_once_keep_their_bytes_apart(call: Caller) -> None:
    files = [os.urandom(MAX_FILE_BYTES) for _ in range(32)]

    async def one(number: int, data: bytes) -> None:
        path = f"/tmp/at-once-{number}.bin"
        up = await call.fields("upload_file", path=path, content_base64=encoded(data))
        assert up["sha256"] == hashlib.sha256(data).hexdigest()

    await asyncio.gather(*(one(number, data) for number, data in enumerate(files)))
    for number, data in enumerate(files):
        down = await call.fields("download_file", path=f"/tmp/at-once-{number}.bin")
        assert down["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"content_base64": "QR=="}, Base64Error),  # unused bits
        ({"content_base64": "QQ"}, Base64Error),
        ({"content_base64": "QUJD\n"}, Base64Error),
        ({"content_base64": "-_-_"}, Base64Error),
        ({"content_base64": "data:,QUJD"}, Base64Error),
        ({"content_base64": "QU\u0410D"}, Base64Error),
        ({"content_base64": "A" * (MAX_ENCODED_CHARS - 1)}, Base64Error),
        ({"content_base64": "A" * (MAX_ENCODED_CHARS + 1)}, SizeLimitError),
        ({"content_base64": "!" * (MAX_ENCODED_CHARS + 4)}, SizeLimitError),
        ({"content_base64": "A" * (MAX_ENCODED_CHARS - 1) + "="}, SizeLimitError),
        ({"content_base64": "A" * MAX_ENCODED_CHARS}, SizeLimitError),
        ({"size_bytes": 3}, DeclarationError),
        ({"sha256": "0" * 64}, DeclarationError),
        ({"sha256": "0" * 63}, ArgumentError),
        ({"sha256": hashlib.sha256(b"\x00\xff").hexdigest().upper()}, ArgumentError),
        ({"size_bytes": -1}, ArgumentError),
        ({"size_bytes": True}, ArgumentError),
        ({"size_bytes": "2"}, ArgumentError),
        ({"size_bytes": None}, ArgumentError),
        ({"content_base64": None}, ArgumentError),
        ({"content_base64": ["AP8="]}, ArgumentError),
        ({"overwrite": True}, ArgumentError),
        ({"path": 5}, ArgumentError),
        ({"path": "relative"}, PathError),
        ({"path": "/tmp/../etc/passwd"}, PathError),
        ({"path": "/tmp/a\0b"}, PathError),
        ({"path": "/tmp/directory/"}, PathError),
        ({"path": "/" + "x" * 4096}, PathError),
        # The order: arguments, path, length, Base64, declaration, and the sandbox last of all.
        ({"path": "bad", "unknown": 1, "content_base64": "!"}, ArgumentError),
        ({"path": "bad", "content_base64": "!" * (MAX_ENCODED_CHARS + 1)}, PathError),
        ({"sandbox_id": "gone", "content_base64": "!"}, Base64Error),
        ({"sandbox_id": "gone", "size_bytes": 9}, DeclarationError),
        ({"sandbox_id": "gone"}, SandboxNotFoundError),
        ({"sandbox_id": "../../etc"}, SandboxNotFoundError),
        ({"sandbox_id": ""}, ArgumentError),
    ],
)
async def test_a_bad_upload_fails_with_its_fixed_text_and_changes_nothing(
    call: Caller, arguments: dict[str, Any], error: type[Any]
) -> None:
    await call.fields("upload_file", path="/tmp/kept.bin", content_base64=encoded(b"kept"))
    good = {"path": "/tmp/kept.bin", "content_base64": "AP8="}
    result = await call("upload_file", **{**good, **arguments})
    assert result.is_error
    larger = {SizeLimitError: LARGER_FILES_IN["E3001"], DeclarationError: LARGER_FILES_IN["E2005"]}
    next_step = {"next_step": larger[error]} if error in larger else {}
    assert result.structured_content == {
        "error": error.text,
        "error_category": error.category,
        **next_step,
    }
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
    down = await call.fields("download_file", path="/tmp/kept.bin")
    assert base64.b64decode(down["content_base64"]) == b"kept"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/tmp/nothing-here", FileMissingError),
        ("/tmp/nothing/here", FileMissingError),
        ("/tmp", FileKindError),
        ("/proc/self/environ", FileMissingError),
    ],
)
async def test_a_bad_download_says_which_sandbox_it_asked(
    call: Caller, path: str, error: type[Any]
) -> None:
    result = await call("download_file", path=path)
    assert result.is_error
    assert result.structured_content == {
        "error": error.text,
        "error_category": error.category,
        "sandbox_id": call.sandbox_id,
    }


async def test_the_bytes_stand_once_in_a_result(call: Caller) -> None:
    text = encoded(os.urandom(999))
    await call.fields("upload_file", path="/tmp/once.bin", content_base64=text)
    result = await call("download_file", path="/tmp/once.bin")
    whole = result.model_dump_json()
    assert whole.count(text) == 1
    shown = json.loads(result.content[0].text)  # type: ignore[union-attr]
    assert "content_base64" not in shown
    assert "verify bytes_read and sha256 before saving" in shown["note"]
    assert shown["bytes_read"] == 999
