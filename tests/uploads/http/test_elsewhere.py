"""A secret opens its one door, and no other credential opens that one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.express import Service, served
from tests.support.raw_http import request
from tests.support.upload_server import UploadServer

API_KEY = "an-api-key-of-express"


@pytest.fixture(scope="module")
def express(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("express")
    (directory / "keys").write_text(f"{API_KEY}\n")
    with served(directory, "--api-key-file", str(directory / "keys"), api_key=API_KEY) as service:
        yield service


@pytest.mark.parametrize("header", ["x-api-key", "authorization", "x-access-token"])
@pytest.mark.parametrize("scheme", ["", "Bearer "])
def test_an_upload_s_secret_is_401_at_express_and_is_not_used_up_there(
    server: UploadServer, express: Service, header: str, scheme: str
) -> None:
    ticket = server.create(5)
    box = express.create()
    secret = {header: scheme + ticket.secret}
    without_key = {"x-api-key": ""}
    for method, url in (
        ("GET", "/v2/sandboxes"),
        ("POST", "/v2/sandboxes"),
        ("DELETE", f"/sandboxes/{box.sandbox_id}"),
        ("GET", "/metrics"),
    ):
        answer = express.http.request(method, url, headers={**without_key, **secret})
        assert answer.status_code == 401
        assert ticket.secret not in answer.text
    file = express.http.get(
        "/files?path=/etc/passwd",
        headers={"e2b-sandbox-id": box.sandbox_id, "x-access-token": "", **secret},
    )
    assert file.status_code == 401
    assert ticket.secret not in express.log()
    assert server.send(ticket.put(b"hello")).status == 200
    box.kill()


def test_a_credential_of_something_else_is_404_at_the_put(
    server: UploadServer, express: Service
) -> None:
    ticket = server.create(5)
    box = express.create()
    for other in (API_KEY, box.token, f"Bearer {API_KEY}", f"Bearer {ticket.secret}"):
        lines = (f"Authorization: {other}", "Content-Length: 5")
        answer = server.send(request("PUT", ticket.path, *lines, body=b"hello"))
        assert (answer.status, answer.json["code"]) == (404, "E7002")
    assert server.state(ticket) == "pending"
    box.kill()
