"""The one GET of a download session."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import pytest
from tests.support.raw_http import RawClient, request
from tests.support.upload_server import OWNER, UploadServer

from agent_sandbox.uploads.states import State


def stage(server: UploadServer, data: bytes, name: str = "out.bin") -> tuple[str, str]:
    """Stage bytes; return the path and the secret."""

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 100_000):
            yield data[at : at + 100_000]

    session, secret = server.call(
        lambda: server.service.stage_download(OWNER, name, chunks(), len(data))
    )
    return server.config.endpoint("download", session.upload_id), secret


def get(path: str, secret: str) -> bytes:
    return request("GET", path, f"Authorization: {secret}")


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_one_get_gives_the_bytes_and_how_to_check_them(any_server: UploadServer, size: int) -> None:
    data = bytes(n % 251 for n in range(size))
    path, secret = stage(any_server, data)
    answer = any_server.send(get(path, secret))
    digest = hashlib.sha256(data)
    assert answer.status == 200
    assert answer.body == data
    assert answer.headers["content-length"] == str(size)
    assert answer.headers["agent-sandbox-sha256"] == digest.hexdigest()
    encoded = base64.b64encode(digest.digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{encoded}:"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/octet-stream"


def test_a_second_get_is_refused(any_server: UploadServer) -> None:
    path, secret = stage(any_server, b"data")
    assert any_server.send(get(path, secret)).body == b"data"
    again = any_server.send(get(path, secret))
    assert (again.status, again.json["code"]) == (409, "E7026")
    assert "create_download_url" in again.json["error"]
    assert "next_step" not in again.json  # that of an upload would send the agent astray
    assert again.headers["cache-control"] == "no-store"


def test_the_name_is_only_ever_encoded(server: UploadServer) -> None:
    name = 'a "b"; é.csv'
    path, secret = stage(server, b"data", name)
    answer = server.send(get(path, secret))
    expected = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    assert answer.headers["content-disposition"] == expected


@pytest.mark.parametrize("method", ["HEAD", "PUT", "POST", "DELETE"])
def test_another_method_is_405_and_uses_nothing_up(server: UploadServer, method: str) -> None:
    path, secret = stage(server, b"data")
    lines = (f"Authorization: {secret}", "Content-Length: 0")
    answer = server.send(request(method, path, *lines), to_head=method == "HEAD")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, OPTIONS"
    assert server.send(get(path, secret)).body == b"data"


def test_without_or_with_a_wrong_secret_nothing_is_told(server: UploadServer) -> None:
    path, secret = stage(server, b"data")
    upload = server.create(5)
    assert server.send(request("GET", path)).status == 401
    assert server.send(request("GET", f"{path}?Authorization={secret}")).status == 401
    for wrong in ("wrong", upload.secret):
        answer = server.send(get(path, wrong))
        assert (answer.status, answer.json["code"]) == (404, "E7002")
    assert server.send(get(path, secret)).body == b"data"


def test_the_secret_of_a_download_is_none_for_uploads(server: UploadServer) -> None:
    path, secret = stage(server, b"data")
    lines = (f"Authorization: {secret}", "Content-Length: 4")
    as_upload = path.replace("/downloads/", "/uploads/")
    assert server.send(request("PUT", as_upload, *lines, body=b"data")).status == 404


def test_a_reader_that_leaves_is_not_read_for_to_the_end(server: UploadServer) -> None:
    size = 40_000_000
    path, secret = stage(server, bytes(size))
    with RawClient(server.port) as client:
        client.send(get(path, secret))
        assert client.answer(to_head=True).status == 200
        client.reset()
    upload_id = path.rpartition("/")[2]
    ended = time.monotonic() + 60
    while server.session(upload_id).state is not State.PLACED:
        assert time.monotonic() < ended
        threading.Event().wait(0.02)
    assert server.service.tally().bytes["out"] < size


def test_a_reader_that_stalls_is_cut(make_server: Callable[..., UploadServer]) -> None:
    server = make_server(idle_deadline_s=0.3, body_deadline_s=2.0)
    size = 30_000_000
    path, secret = stage(server, b"x" * size)
    with RawClient(server.port) as client:
        client.send(get(path, secret))
        threading.Event().wait(1.5)  # the stall is the input here
        assert len(client.rest()) < size
