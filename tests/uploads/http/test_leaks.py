"""One canary for each secret: it is in no answer, no log, no file and no traceback."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.support.raw_http import request
from tests.support.upload_server import PARSERS, running

CONTENT = b"first-canary-bytes" + b"\0" * 3_000 + b"last-canary-bytes"


def shapes(secret: str) -> list[str]:
    """Return the forms in which a secret may be written."""
    raw = secret.encode()
    return [secret, base64.b64encode(raw).decode().rstrip("=")[:-1], raw.hex(), quote(secret)]


@pytest.mark.parametrize("parser", PARSERS)
def test_neither_secret_nor_content_is_logged_or_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, parser: str
) -> None:
    with caplog.at_level(logging.DEBUG), running(tmp_path, parser) as server:
        ticket = server.create(len(CONTENT), name="name-canary.bin")
        answers = [
            server.send(data)
            for data in (
                request("PUT", f"{ticket.path}?Authorization={ticket.secret}", "Content-Length: 0"),
                request("PUT", f"{ticket.path}/{ticket.secret}", "Content-Length: 0"),
                request(
                    "PUT", "/uploads/x", f"Authorization: {ticket.secret}", "Content-Length: 0"
                ),
                ticket.put(b"", "Content-Range: bytes 0-1/2"),
                ticket.put(b"", "Host: canary.example"),
                ticket.put(CONTENT[:-1]),
                ticket.put(CONTENT),
                ticket.put(CONTENT),
                b"PUT / HTTP/1.1\r\nHost: a\r\nAuthorization : "
                + ticket.secret.encode()
                + b"\r\n\r\n",
            )
        ]
        assert server.state(ticket) == "stored"
    written = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    written += "".join(f"{answer.headers}{answer.body!r}" for answer in answers)
    for canary in (*shapes(ticket.secret), "canary-bytes", "name-canary", "canary.example"):
        assert canary not in written
    stored = (tmp_path / "uploads.sqlite").read_bytes().decode("latin-1")
    for canary in shapes(ticket.secret):
        assert canary not in stored
    assert ticket.upload_id in stored
