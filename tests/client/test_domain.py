"""Our SDK finds the data plane of a sandbox by its name, behind a proxy that speaks TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from tests.client.conftest import run
from tests.support.express import served
from tests.support.tls import tls_before

import agent_sandbox
import agent_sandbox.sync

DOMAIN = "sandboxes.example"


@pytest.fixture
def asked_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every name leads to this machine, and is noted."""
    look_up, names = socket.getaddrinfo, set()

    def near(host: Any, *rest: Any, **more: Any) -> Any:
        names.add(host.decode() if isinstance(host, bytes) else host)
        return look_up("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", near)
    return names


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """A service with a domain: the URL of its control plane, and whom to trust."""
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with (
        tls_before(authority.issue_cert(DOMAIN, f"*.{DOMAIN}")) as proxy,
        served(tmp_path, "--domain", f"{DOMAIN}:{proxy.port}") as running,
    ):
        proxy.upstream = running.url
        yield f"https://api.{DOMAIN}:{proxy.port}", context


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_files_go_to_the_name_of_their_sandbox(
    service: tuple[str, ssl.SSLContext], asked_names: set[str], blocking: bool
) -> None:
    url, context = service
    surface: Any = agent_sandbox.sync if blocking else agent_sandbox
    make: Any = httpx2.Client if blocking else httpx2.AsyncClient
    http = make(verify=context, trust_env=False)
    client = surface.SandboxClient(api_url=url, http_client=http)
    sandbox = await run(client.create)
    await run(partial(sandbox.files.write, "/tmp/a", b"by name"))
    assert await run(partial(sandbox.files.read_bytes, "/tmp/a", max_bytes=10)) == b"by name"
    assert await run(sandbox.kill)
    assert {f"api.{DOMAIN}", f"49983-{sandbox.sandbox_id}.{DOMAIN}"} <= asked_names
    await run(http.close if blocking else http.aclose)
