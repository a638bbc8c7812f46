"""Blocking entry points for the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.http import listening_socket, serve_http, url_of
from agent_sandbox.mcp_server.logs import PROCESS_LOGGERS, log_to_stderr, redact_libraries
from agent_sandbox.mcp_server.memory import keep_freed_memory
from agent_sandbox.mcp_server.server import build_server
from agent_sandbox.mcp_server.state import ServerState, open_state
from agent_sandbox.mcp_server.stdio import Wire, diverted_stdio, serve_stdio

STDIO_CLEANUP_S = 1.0
"""Time for destroying sandboxes after the client has gone."""

STDIO_EXIT_S = 1.8
"""Time from the client's going to the end of the process; the official client kills after 2 s."""


def run_stdio(config: McpConfig) -> None:
    """Serve one client on descriptors 0 and 1, and return when it has gone.

    Whatever happens, the process ends within 1.8 s of the client's closing its side: it is ended
    hard if something does not let go, with status 0.

    Raises:
        ConfigError: E6000, settings that contradict each other.
    """
    config.settings()
    _prepare_process()
    with diverted_stdio() as wire:
        asyncio.run(_stdio(config, wire))


async def _stdio(config: McpConfig, wire: Wire) -> None:
    bounded = replace(config, shutdown_timeout_s=min(config.shutdown_timeout_s, STDIO_CLEANUP_S))
    stopping = asyncio.current_task()
    assert stopping is not None  # noqa: S101 - this is a coroutine of a task
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.cancel)
    with suppress(asyncio.CancelledError):  # told to stop: everything ends in order
        async with open_state(bounded) as state:

            @asynccontextmanager
            async def borrowed() -> AsyncIterator[ServerState]:
                yield state

            def client_gone() -> None:
                state.registry.end_scope(state.registry.process_scope)
                _end_process_after(STDIO_EXIT_S)

            server = build_server(bounded, open_state_=borrowed)
            await serve_stdio(_sdk.lowlevel_server(server), wire, on_end=client_gone)


def _prepare_process() -> None:
    log_to_stderr()
    redact_libraries(*PROCESS_LOGGERS)
    keep_freed_memory()


def _end_process_after(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, args=(0,))
    timer.daemon = True
    timer.start()


def run_http(config: McpConfig) -> None:
    """Serve Streamable HTTP until SIGINT or SIGTERM; the URL goes to standard error.

    Raises:
        ConfigError: E6000, settings that contradict each other, or an address beyond loopback
            without `insecure`.
        OSError: The address cannot be used.
    """
    config.settings()
    config.check_exposure()
    _prepare_process()
    with listening_socket(config) as listener:
        print(
            f"agent-sandbox: MCP over Streamable HTTP at {url_of(listener)}",
            file=sys.stderr,
            flush=True,
        )
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after its orderly end
            asyncio.run(serve_http(config, listener))
