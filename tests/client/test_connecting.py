"""The way to a service: its addresses, and the time for all of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.conftest import LIBRARIES, Lives
from tests.support.bad_peer import SANDBOX_ID, BadPeer
from tests.support.environment import PROXIES, without

from agent_sandbox.models import SandboxTimeoutError, SandboxUnavailableError

NAME = "sandboxes.example"


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose queue is full: connecting waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


@pytest.fixture
def settings(surface: str, http_client: str) -> Iterator[dict[str, Any]]:
    """The caller's own client, or none."""
    if http_client == "own":
        yield {}
        return
    kind = "AsyncClient" if surface == "async" else "Client"
    yield {"http_client": getattr(LIBRARIES[http_client], kind)(trust_env=False)}


async def test_a_connection_that_hangs_is_a_sandbox_that_was_late(
    surface: str, settings: dict[str, Any], silent: int
) -> None:
    async with Lives(surface, {"api_url": f"http://127.0.0.1:{silent}"} | settings) as client:
        started = time.monotonic()
        with pytest.raises(SandboxTimeoutError) as caught:
            await client.create(deadline_s=0.3)
        assert caught.value.code == "E5004"
        assert time.monotonic() - started < 10
    await _end(settings)


async def test_nobody_who_listens_is_an_unavailable_service(
    surface: str, settings: dict[str, Any]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with Lives(surface, {"api_url": url} | settings) as client:
        with pytest.raises(SandboxUnavailableError):
            await client.create(deadline_s=20)
    await _end(settings)


async def _end(settings: dict[str, Any]) -> None:
    http: Any = settings.get("http_client")
    if hasattr(http, "aclose"):
        await http.aclose()
    elif http is not None:
        http.close()


# --- Names with more than one address ---------------------------------------------------------


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a name lead to addresses of loopback; Linux answers on all of 127.0.0.0/8."""
    without(monkeypatch, PROXIES)
    real = socket.getaddrinfo

    def lead_to(addresses: list[str]) -> None:
        def found(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            names = addresses if host in (NAME, NAME.encode()) else [host]
            return [info for name in names for info in real(name, port, *args, **kwargs)]

        monkeypatch.setattr(socket, "getaddrinfo", found)

    return lead_to


async def test_a_deadline_is_spent_once_for_all_addresses_of_a_name(
    resolve: Any, silent: int
) -> None:
    """Only what blocks needs this: the async side's clock runs around everything."""
    resolve(["127.0.0.1"] * 50)
    async with Lives("blocking", {"api_url": f"http://{NAME}:{silent}"}) as client:
        started = time.monotonic()
        with pytest.raises(SandboxTimeoutError):
            await client.create(deadline_s=0.5)
        assert time.monotonic() - started < 10  # 25 s, were it 0.5 s for each


async def test_an_address_that_is_silent_or_closed_does_not_hide_the_next(
    surface: str, resolve: Any
) -> None:
    with (
        BadPeer(lambda talk: None) as peer,
        socket.create_server(("127.0.0.2", peer.port), backlog=0) as full,
    ):
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        resolve(["127.0.0.3", "127.0.0.2", "127.0.0.1"])  # closed, silent, there
        async with Lives(surface, {"api_url": f"http://{NAME}:{peer.port}"}) as client:
            sandbox = await client.create(deadline_s=4)
            assert sandbox.sandbox_id == SANDBOX_ID
        for filler in fillers:
            filler.close()


async def test_a_name_without_an_address_is_an_unavailable_service(
    surface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, PROXIES)

    def nothing(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "canary")

    monkeypatch.setattr(socket, "getaddrinfo", nothing)
    async with Lives(surface, {"api_url": f"http://{NAME}"}) as client:
        with pytest.raises(SandboxUnavailableError):
            await client.create(deadline_s=20)
