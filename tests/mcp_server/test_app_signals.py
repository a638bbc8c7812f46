"""The first signal ends a STDIO server in order and in time; a second one changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest
from tests.support.mcp_servers import WAIT_S

from agent_sandbox.mcp_server import app


async def test_a_second_signal_does_not_disturb_the_end_which_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "STDIO_EXIT_S", 0.01)
    loop = asyncio.get_running_loop()
    exited, after = threading.Event(), asyncio.Event()
    stops: list[None] = []
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    app._on_first_signal(exited.set, lambda: stops.append(None))
    try:
        for number in numbers[:2]:
            loop.add_signal_handler(signal.SIGUSR1, after.set)
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)  # handled after the one before
            await asyncio.wait_for(after.wait(), WAIT_S)
            after.clear()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    assert stops == [None]
    assert await asyncio.to_thread(exited.wait, WAIT_S)
