"""The nginx recipe of docs/serve.md, as it stands there, with sandboxes found by their names."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.docs.test_proxies import FRAME
from tests.support.express import Box, Service, served

ROOT = Path(__file__).resolve().parents[2]
DOMAIN = "sandboxes.example.com"
KEY = "key-of-a-caller"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("serve")
    (home / "keys").write_text(KEY)
    options = ("--domain", DOMAIN, "--api-key-file", str(home / "keys"))
    with served(home, *options, api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("nginx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = (ROOT / "docs" / "serve.md").read_text("utf-8")
    (server,) = re.findall(r"```nginx\n(.*?)```", page, re.S)
    server = server.replace("http://127.0.0.1:8080", service.url)
    server = server.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    user = "user root;" if os.geteuid() == 0 else ""
    (home / "nginx.conf").write_text(FRAME.format(home=home, server=server, user=user))
    places = ("-p", str(home), "-c", str(home / "nginx.conf"), "-e", str(home / "error.log"))
    subprocess.run(["nginx", *places], check=True, timeout=30)  # returns when it listens
    yield f"http://127.0.0.1:{port}"
    subprocess.run(["nginx", *places, "-s", "stop"], check=True, timeout=30)


def test_a_caller_needs_nothing_but_the_names(proxy: str) -> None:
    with httpx2.Client(base_url=proxy, trust_env=False, timeout=60) as http:
        api = {"host": f"api.{DOMAIN}", "x-api-key": KEY}
        made = http.post("/v2/sandboxes", json={"templateID": "base"}, headers=api).json()
        assert made["domain"] == DOMAIN
        box = Box(http, made["sandboxID"], made["envdAccessToken"])
        data = os.urandom(3 * 1_048_576)
        here = {"host": f"49983-{box.sandbox_id}.{DOMAIN}", "x-access-token": box.token}
        raw = here | {"content-type": "application/octet-stream"}
        put = http.post("/files", params={"path": "/tmp/a"}, content=data, headers=raw)
        assert put.status_code == 200
        assert http.get("/files", params={"path": "/tmp/a"}, headers=here).content == data
        assert http.delete(f"/sandboxes/{box.sandbox_id}", headers=api).status_code == 204


def test_metrics_are_not_open_to_the_world(proxy: str) -> None:
    with httpx2.Client(base_url=proxy, trust_env=False, timeout=60) as http:
        assert http.get("/metrics", headers={"host": DOMAIN}).status_code == 401
