"""The two dimensions of the client's tests: which surface, over which HTTP client."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
import httpx
import httpx2
import pytest
from tests.support.bad_peer import SANDBOX_ID, TOKEN, BadPeer, Script, Talk
from tests.support.environment import SETTINGS, without

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.models import AgentSandboxError

LIBRARIES: dict[str, Any] = {"httpx2": httpx2, "httpx": httpx}


class Subject:
    """A connected sandbox whose methods are awaited on both surfaces.

    Attributes:
        http: The HTTP client under it.
        streams: True where the surface is blocking.
    """

    def __init__(self, sandbox: Any, http: Any, *, blocking: bool) -> None:
        self.sandbox, self.http, self.blocking = sandbox, http, blocking

    async def files(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of `files`; a stream comes back as the list of its items."""
        bound = partial(getattr(self.sandbox.files, method), *args, **kwargs)
        if method in ("stream", "watch"):
            if self.blocking:
                return await anyio.to_thread.run_sync(lambda: list(bound()))
            async with bound() as items:
                return [item async for item in items]
        return await run(bound)

    def busy(self) -> int:
        """Return how many pool slots are taken by something else than an idle connection."""
        return busy(self.http)


class Lives:
    """A client of either surface and the sandboxes it gives, whose methods are awaited."""

    def __init__(self, surface: str, settings: Mapping[str, Any]) -> None:
        module: Any = agent_sandbox if surface == "async" else agent_sandbox.sync
        self._client = module.SandboxClient(**settings)

    async def __aenter__(self) -> Lives:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if hasattr(self._client, "aclose"):
            await self._client.aclose()
        else:
            await anyio.to_thread.run_sync(self._client.close)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: run(partial(getattr(self._client, name), *args, **kwargs))


async def run(call: Callable[[], Any]) -> Any:
    """Call a function of either surface without holding up the event loop."""
    target = call.func if isinstance(call, partial) else call
    if inspect.iscoroutinefunction(target):
        return await call()
    return await anyio.to_thread.run_sync(call)


def busy(http: Any) -> int:
    """Return how many slots of a client's pools are not free."""
    transport = http._transport
    pools = [way._pool for way in transport._ways.values()] if hasattr(transport, "_ways") else []
    pools += [transport._pool] if hasattr(transport, "_pool") else []
    taken = sum(
        not each.is_idle() and not each.is_closed() for pool in pools for each in pool.connections
    )
    return taken + sum(len(pool._requests) for pool in pools)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set on this machine decides nothing."""
    without(monkeypatch, SETTINGS)


@pytest.fixture(params=["async", "blocking"])
def surface(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["own", "httpx2", "httpx"])
def http_client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Connect = Callable[..., AbstractAsyncContextManager[Subject]]


@pytest.fixture
def connect(surface: str, http_client: str) -> Connect:
    """Connect to a `BadPeer` on the surface and over the HTTP client of this test."""
    return partial(connected, surface=surface, http_client=http_client)


@asynccontextmanager
async def connected(
    peer: BadPeer, *, surface: str, http_client: str, **options: Any
) -> AsyncIterator[Subject]:
    """Connect to a sandbox of a peer; `options` go to the caller's own HTTP client."""
    if surface == "async":
        own = _made(http_client, "AsyncClient", options)
        async with agent_sandbox.SandboxClient(api_url=peer.url, http_client=own) as client:
            sandbox = await client.connect(SANDBOX_ID)
            yield Subject(sandbox, own or client._slot._made[-1], blocking=False)
        if own is not None:
            assert not own.is_closed
            await own.aclose()
    else:
        own = _made(http_client, "Client", options)
        with agent_sandbox.sync.SandboxClient(api_url=peer.url, http_client=own) as blocking:
            twin = await anyio.to_thread.run_sync(lambda: blocking.connect(SANDBOX_ID))
            yield Subject(twin, own or blocking._slot._made[-1], blocking=True)
        if own is not None:
            assert not own.is_closed
            own.close()


def _made(http_client: str, kind: str, options: dict[str, Any]) -> Any:
    if http_client == "own":
        return None
    return getattr(LIBRARIES[http_client], kind)(trust_env=False, **options)


CANARY = b"upstream-canary-7d20"


def sends(data: bytes, *, fin: bool = False) -> Script:
    """Return a script that sends the same bytes for every request."""

    def script(talk: Talk) -> None:
        talk.send(data)
        if fin:
            talk.close()

    return script


def assert_clean(error: AgentSandboxError) -> None:
    """The text is the fixed one of its code, and nothing of the exchange hangs on the error."""
    assert str(error) == type(error).text
    seen = repr(error) + repr(error.__dict__) + str(error.__cause__)
    assert CANARY.decode() not in seen
    assert TOKEN not in seen
    assert error.__suppress_context__ or error.__context__ is None


async def refused(
    connect: Connect, script: Script, expected: type[AgentSandboxError], **kwargs: Any
) -> BadPeer:
    """Check that a bounded read fails as expected, and that the pool has lost nothing."""
    kwargs.setdefault("max_bytes", 1000)
    kwargs.setdefault("deadline_s", 15)
    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            with pytest.raises(expected) as caught:
                await subject.files("read_bytes", "/f", **kwargs)
            assert type(caught.value) is expected
            assert_clean(caught.value)
            assert subject.busy() == 0
    return peer
