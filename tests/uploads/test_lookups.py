"""Names that strangers choose, and name servers that do not answer."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent_sandbox.uploads.lookups import MOST_LOOKUPS, system_resolver

WAIT_S = 30


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nobody answers for `evil.example` before the event is set."""
    answers = threading.Event()
    real = socket.getaddrinfo

    def look(host: Any, *arguments: Any, **named: Any) -> Any:
        if host == "evil.example":
            assert answers.wait(WAIT_S)
            raise socket.gaierror
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    yield answers
    answers.set()


async def test_every_address_of_a_name_is_found_once() -> None:
    found = await system_resolver("127.0.0.1", 443)
    assert found == ["127.0.0.1"]


async def test_a_name_that_is_none_is_an_error(silent_server: threading.Event) -> None:
    silent_server.set()
    with pytest.raises(OSError):  # noqa: PT011 - what the system says of it
        await system_resolver("evil.example", 443)
    with pytest.raises(UnicodeError):
        await system_resolver("a" * 64 + ".example", 443)


async def test_names_that_nobody_answers_for_hold_up_no_other_look_up(
    silent_server: threading.Event,
) -> None:
    waiting = [
        asyncio.create_task(system_resolver("evil.example", 443)) for _ in range(MOST_LOOKUPS)
    ]
    await asyncio.sleep(0)  # each has begun
    async with asyncio.timeout(WAIT_S / 2):
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 443)
        with pytest.raises(TimeoutError):  # and not one more thread
            await system_resolver("127.0.0.1", 443)
    silent_server.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in ended} == {socket.gaierror}
    assert await system_resolver("127.0.0.1", 443) == ["127.0.0.1"]


def test_a_look_up_that_hangs_does_not_keep_the_program_from_ending() -> None:
    program = """
import asyncio, contextlib, socket, time
socket.getaddrinfo = lambda *_, **__: time.sleep(300)
from agent_sandbox.uploads.lookups import system_resolver
async def main():
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await system_resolver("evil.example", 443)
asyncio.run(main())
print("ended")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
