"""A hundred sessions that end, one by one or with their server, leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from tests.support.express import Service, settled, wait_until
from tests.support.mcp_servers import HttpServer, RawHttp, http_server
from tests.support.tasks import elsewhere

from agent_sandbox.express.state import default_state_dir

SESSIONS = 100
AT_ONCE = 8
"""Sandboxes that are made at once: more would only wait for the processor."""


async def open_sessions(stack: AsyncExitStack, url: str) -> list[tuple[RawHttp, str]]:
    """Open sessions, each with a sandbox in which a command runs."""
    slots = asyncio.Semaphore(AT_ONCE)
    (shared,) = [await stack.enter_async_context(RawHttp.open(url))]

    async def one() -> tuple[RawHttp, str]:
        raw = RawHttp(shared.http, url)
        async with slots:
            await raw.initialize()
            answer = await raw.call(1, "start_background_task", command="sleep 1000")
        return raw, answer["result"]["structuredContent"]["sandbox_id"]

    return list(await asyncio.gather(*(one() for _ in range(SESSIONS))))


def found(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


async def test_closed_sessions_leave_no_process_no_socket_and_no_directory(
    express: Service,
) -> None:
    service = psutil.Process(express.process.pid)
    instances = express.state_dir / "instances"

    def left() -> tuple[int, int]:
        return len(found(instances, "*/*/root")), len(service.children(recursive=True))

    with http_server(env=elsewhere(express)) as server:
        express.create().kill()  # with the spare one that follows it, the usual state
        settled(lambda: left()[1])
        before, mcp = left(), psutil.Process(server.process.pid)
        async with AsyncExitStack() as stack:
            sessions = await open_sessions(stack, server.url)
            assert len({sandbox_id for _, sandbox_id in sessions}) == SESSIONS
            descriptors = mcp.num_fds()
            for raw, _ in sessions:
                answer = await raw.http.delete(raw.url, headers=raw.session)
                assert answer.status_code == 200
            await asyncio.to_thread(wait_until, lambda: left() == before, 30)
            assert express.http.get("/v2/sandboxes").json() == []
        assert mcp.num_fds() < descriptors + SESSIONS // 2  # it keeps some connections warm
        assert mcp.children() == []
        assert server.end() == ""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_server_that_stops_takes_every_session_with_it(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    instances = default_state_dir() / "instances"
    with http_server() as server:
        async with AsyncExitStack() as stack:
            sessions = await open_sessions(stack, server.url)
            below = psutil.Process(server.process.pid).children(recursive=True)
            assert len(below) > SESSIONS
            assert len(found(tmp_path, "asb-*/s")) == 1
            await asyncio.to_thread(stop, server, how)
        _, left = await asyncio.to_thread(psutil.wait_procs, below, 30)
        assert left == []
    for _, sandbox_id in sessions:
        assert not found(instances, f"*/{sandbox_id}")
    assert not found(tmp_path, "asb-*")


def stop(server: HttpServer, how: signal.Signals) -> None:
    assert server.end(how) == ""
