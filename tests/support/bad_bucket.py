"""A bucket that answers late, wrongly, in half or not at all: a proxy before a real S3 server."""

from __future__ import annotations

import contextlib
import http.client
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.upload_parts import listening, make_bucket, stop

from agent_sandbox.uploads.blobs.s3 import S3Blobs

Script = Callable[[str, str, int], str]
"""Says what becomes of the n-th request of a method, by its method, path and n:

- `pass`: the real answer;
- `refuse`: 503 without the server having heard of it; `fail`: the same with 500;
- `hide`: the server does it, and the answer is 503;
- `swallow`: the server does it, and nothing is answered while the client waits;
- `drop`: the connection is cut before the request's body was read whole;
- `tear`: the connection is cut in the middle of the answer;
- `slow`: the real answer, after a while that is shorter than the client's patience.
"""

SLOW_S = 0.5
REQUEST_TIMEOUT_S = 2.0


@contextlib.contextmanager
def moto() -> Iterator[dict[str, Any]]:
    """Run moto's S3; yield settings for `S3Blobs`."""
    program = str(Path(sys.executable).with_name("moto_server"))
    process, port = listening(
        lambda port: subprocess.Popen(
            [program, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        make_bucket(f"{endpoint}/uploads")
        yield {
            "bucket": "uploads",
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "canary-access-key",
            "secret_access_key": "canary-secret-key",
            "client_options": {"allow_http": True},
        }
    finally:
        stop(process)


@contextlib.contextmanager
def bad_bucket(settings: dict[str, Any], script: Script) -> Iterator[tuple[S3Blobs, list[str]]]:
    """Yield blobs behind the proxy, and the methods that it has seen."""
    seen: list[str] = []
    counting = threading.Lock()
    closing = threading.Event()
    endpoint = settings["endpoint"]

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            with counting:
                seen.append(self.command)
                turn = seen.count(self.command)
            action = script(self.command, self.path, turn)
            if action == "drop":
                self.rfile.read(1)
                return self.cut()
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if action == "refuse":
                return self.reply(503, b"<Error><Code>SlowDown a secret</Code></Error>")
            if action == "fail":
                return self.reply(500, b"<Error><Code>InternalError a secret</Code></Error>")
            status, data, headers = self.passed_on(body)
            if action == "hide":
                return self.reply(503, b"")
            if action == "swallow":
                closing.wait(REQUEST_TIMEOUT_S * 5)
                return self.cut()
            if action == "slow":
                closing.wait(SLOW_S)
            return self.reply(status, data, headers, torn=action == "tear")

        def passed_on(self, body: bytes) -> tuple[int, bytes, Any]:
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=20)
            try:
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                return answer.status, answer.read(), answer.headers
            finally:
                connection.close()

        def reply(
            self, status: int, data: bytes, headers: Any = None, *, torn: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                if name.lower() in ("etag", "last-modified", "content-type"):
                    self.send_header(name, value)
            length = headers.get("content-length") if headers and self.command == "HEAD" else None
            self.send_header("content-length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if torn else data)
            if torn:
                self.cut()

        def cut(self) -> None:
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815 - the base's

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that gave up

    server = Server(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield (
            S3Blobs(
                **{**settings, "endpoint": f"http://127.0.0.1:{server.server_address[1]}"},
                prefix=secrets.token_hex(8),
                max_retries=3,
                retry_timeout_s=10,
                request_timeout_s=REQUEST_TIMEOUT_S,
            ),
            seen,
        )
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
