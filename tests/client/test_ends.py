"""The end of a block: the sandbox is killed, and what went wrong in the block is what is raised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from tests.client.conftest import assert_clean, sends
from tests.support.bad_peer import SANDBOX_ID, WAIT_S, BadPeer, Talk, answer

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client import _drive_async
from agent_sandbox.client._drive_async import AsyncDriver
from agent_sandbox.models import SandboxUnavailableError


class KillFails(BadPeer):
    """Makes sandboxes, and answers their end with an error."""

    def __init__(self) -> None:
        super().__init__(sends(answer(b"abc")))
        self.kills = 0

    def _serve(self, talk: Talk) -> None:
        made = b'{"templateID":"b","sandboxID":"%s","envdVersion":"1"}' % SANDBOX_ID.encode()
        close = b"Connection: close\r\n"
        if talk.request().line.startswith("DELETE"):
            self.kills += 1
            talk.send(answer(b"{}", status=b"500 canary", headers=close))
        else:
            talk.send(answer(made, status=b"201 Created", headers=close))
        talk.close()
        talk.wait_end()


class OwnError(Exception):
    pass


async def _block(surface: str, url: str, failure: Exception | None) -> None:
    """Run a block that ends or fails, and note its client."""
    if surface == "async":
        async with await agent_sandbox.Sandbox.create(api_url=url) as sandbox:
            seen.append(sandbox._client._slot)
            if failure is not None:
                raise failure
        return
    await anyio.to_thread.run_sync(partial(_blocking, url, failure))


def _blocking(url: str, failure: Exception | None) -> None:
    with agent_sandbox.sync.Sandbox.create(api_url=url) as sandbox:
        seen.append(sandbox._client._slot)
        if failure is not None:
            raise failure


seen: list[Any] = []


async def test_a_kill_that_fails_at_the_end_of_a_good_block_is_raised(surface: str) -> None:
    peer = KillFails()
    with peer:
        with pytest.raises(SandboxUnavailableError) as caught:
            await _block(surface, peer.url, None)
        assert_clean(caught.value)
        assert peer.kills == 1
    assert seen.pop().closed


async def test_a_kill_that_fails_does_not_hide_what_went_wrong_in_the_block(surface: str) -> None:
    peer = KillFails()
    with peer:
        with pytest.raises(OwnError) as caught:
            await _block(surface, peer.url, OwnError())
        assert caught.value.__cause__ is None
        assert peer.kills == 1
    assert seen.pop().closed


# --- Another event loop than asyncio ----------------------------------------------------------


class _Response:
    """A response whose close hangs for long unless it is cancelled, or fails."""

    is_closed = False
    stream = None

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.began = self.cancelled = False

    async def aclose(self) -> None:
        self.began = True
        if self.fails:
            raise httpx2.CloseError("canary")
        try:
            await anyio.sleep(WAIT_S)
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise


@pytest.fixture
async def driver() -> AsyncIterator[AsyncDriver]:
    async with httpx2.AsyncClient() as http:
        yield AsyncDriver(http)


@pytest.mark.parametrize("fails", [False, True], ids=["hangs", "fails"])
async def test_without_asyncio_a_close_has_no_task_of_its_own_and_is_bounded_all_the_same(
    driver: AsyncDriver, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLoop:
        """asyncio, seen from another event loop."""

        def __getattr__(self, name: str) -> Any:
            assert name == "get_running_loop", "nothing else of it works there"

            def nothing() -> None:
                raise RuntimeError("no running event loop")

            return nothing

    monkeypatch.setattr(_drive_async, "asyncio", NoLoop())
    monkeypatch.setattr(_drive_async, "CLOSE_TIMEOUT_S", 0.05)
    response = _Response(fails=fails)
    await driver.close(response)
    assert response.began
    assert response.cancelled is not fails
