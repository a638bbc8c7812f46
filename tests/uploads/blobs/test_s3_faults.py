"""A bucket that answers late, wrongly or not at all, played by a proxy before a real server."""

from __future__ import annotations

import contextlib
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent_sandbox.errors import UploadOutcomeUnknownError, UploadStorageError
from agent_sandbox.uploads.blobs.s3 import PART_BYTES, S3Blobs

Script = Callable[[str, str, int], str]
"""Says what the n-th request of a method does: `pass`, `refuse`, or `hide` its real answer."""


@contextlib.contextmanager
def bucket(settings: dict[str, Any], script: Script) -> Iterator[tuple[S3Blobs, list[str]]]:
    seen: list[str] = []
    endpoint = settings["endpoint"]

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            seen.append(self.command)
            action = script(self.command, self.path, seen.count(self.command))
            if action == "refuse":
                return self.reply(503, b"<Error><Code>SlowDown a secret</Code></Error>")
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            request = urllib.request.Request(  # noqa: S310 - loopback
                endpoint + self.path, data=body or None, method=self.command, headers=headers
            )
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
                    status, data, back = answer.status, answer.read(), answer.headers
            except urllib.error.HTTPError as error:
                status, data, back = error.code, error.read(), error.headers
            if action == "hide":
                return self.reply(503, b"")
            return self.reply(status, data, back)

        def reply(self, status: int, data: bytes, headers: Any = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                if name.lower() in ("etag", "last-modified", "content-type"):
                    self.send_header(name, value)
            length = headers.get("content-length") if headers and self.command == "HEAD" else None
            self.send_header("content-length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815 - the base's

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield (
            S3Blobs(
                **{**settings, "endpoint": f"http://127.0.0.1:{server.server_address[1]}"},
                prefix=secrets.token_hex(8),
                max_retries=3,
                retry_timeout_s=10,
            ),
            seen,
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


async def put(blobs: S3Blobs, data: bytes) -> None:
    writer = await blobs.begin("ab/cd", len(data))
    try:
        await writer.write([data])
        await writer.commit()
    except BaseException:
        await writer.abort()
        raise


async def test_an_answer_of_503_twice_and_then_ok_is_one_object(
    s3_settings: dict[str, Any],
) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return "refuse" if method == "PUT" and turn <= 2 else "pass"

    with bucket(s3_settings, script) as (blobs, seen):
        await put(blobs, b"bytes")
        assert seen.count("PUT") == 3
        assert await blobs.head("ab/cd") == 5


@pytest.mark.parametrize("size", [5, PART_BYTES + 1])
async def test_a_bucket_that_is_away_leaves_the_outcome_unknown_and_shows_nothing(
    s3_settings: dict[str, Any], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with bucket(s3_settings, lambda method, path, turn: "refuse") as (blobs, _):
        with pytest.raises(UploadOutcomeUnknownError) as refusal:
            await put(blobs, bytes(size))
        assert refusal.value.__suppress_context__
        with pytest.raises(UploadStorageError):
            await blobs.head("ab/cd")
        with pytest.raises(UploadStorageError):
            await blobs.open("ab/cd")
        with pytest.raises(UploadStorageError):
            await blobs.delete("ab/cd")
        with pytest.raises(UploadStorageError):
            assert [one async for one in blobs.list_orphans(0)]
    assert "secret" not in caplog.text


async def test_a_put_that_was_applied_but_not_answered_is_unknown_and_found_by_head(
    s3_settings: dict[str, Any],
) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return "hide" if method == "PUT" else "pass"

    with bucket(s3_settings, script) as (blobs, _):
        with pytest.raises(UploadOutcomeUnknownError):
            await put(blobs, b"bytes")
        assert await blobs.head("ab/cd") == 5


async def test_a_part_that_fails_ends_the_upload_without_an_object(
    s3_settings: dict[str, Any],
) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return "refuse" if method == "PUT" and "partNumber=2" in path else "pass"

    with bucket(s3_settings, script) as (blobs, seen):
        with pytest.raises(UploadOutcomeUnknownError):
            await put(blobs, bytes(3 * PART_BYTES))
        assert await blobs.head("ab/cd") is None
        assert "DELETE" in seen  # the parts were dropped, not left to a lifecycle rule
