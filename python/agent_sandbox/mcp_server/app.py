"""Blocking entry points for the command line."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import ConfigError
from agent_sandbox.express.address import listen
from agent_sandbox.express.selector import make_loop
from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.handoff import hand_off
from agent_sandbox.mcp_server.http import MCP_PATH, serve_http
from agent_sandbox.mcp_server.logs import (
    PROCESS_LOGGERS,
    LoopErrors,
    log,
    log_to_stderr,
    redact_libraries,
)
from agent_sandbox.mcp_server.ownership import Registry
from agent_sandbox.mcp_server.reach import warn_if_unreachable
from agent_sandbox.mcp_server.server import build_server
from agent_sandbox.mcp_server.signals import stop_signals
from agent_sandbox.mcp_server.sockets import base_url
from agent_sandbox.mcp_server.state import ServerState, open_state
from agent_sandbox.mcp_server.stdio import Wire, diverted_stdio, serve_stdio
from agent_sandbox.memory import give_back_regularly, keep_freed_memory
from agent_sandbox.open_files import raise_limit

STDIO_CLEANUP_S = 0.8
"""Time for destroying sandboxes after the client has gone."""

STDIO_EXIT_S = 1.2
"""Time from the client's going to the end of the process; the official client kills after 2 s."""


def run_stdio(config: McpConfig) -> None:
    """Serve one client on descriptors 0 and 1, and end the process when it has gone.

    Whatever happens, it ends within 1.2 s of the client's closing its side, or of SIGINT, SIGTERM
    or SIGHUP: it is ended hard if something does not let go, with status 0. Sandboxes that are
    not destroyed by then are handed to a process of their own.

    Raises:
        ConfigError: E6000, settings that contradict each other.
    """
    settings = config.settings()
    _prepare_process()
    warn_if_unreachable(settings)
    _warn_of_uploads(config)
    with diverted_stdio() as wire:
        _run(_stdio(config, wire))
    _end_process()


async def _stdio(config: McpConfig, wire: Wire) -> None:
    bounded = replace(config, shutdown_timeout_s=min(config.shutdown_timeout_s, STDIO_CLEANUP_S))
    serving = asyncio.current_task()
    assert serving is not None  # noqa: S101 - this is a coroutine of a task
    asyncio.get_running_loop().set_exception_handler(LoopErrors())
    with suppress(asyncio.CancelledError):  # told to stop: everything ends in order
        async with open_state(bounded) as state:
            exit_hard = partial(_exit_hard, config.settings(), state.registry)
            _on_first_signal(exit_hard, serving.cancel)

            @asynccontextmanager
            async def borrowed() -> AsyncIterator[ServerState]:
                yield state

            await serve_stdio(
                _sdk.lowlevel_server(build_server(bounded, open_state_=borrowed)),
                wire,
                on_eof=partial(_after, STDIO_EXIT_S, exit_hard),
                on_end=partial(state.registry.end_scope, state.registry.process_scope),
            )


def _on_first_signal(exit_hard: Callable[[], None], stop: Callable[[], object]) -> None:
    """Stop in order at the first signal to stop, in the time that an end of input has."""
    loop = asyncio.get_running_loop()
    numbers = stop_signals()

    def stop_once() -> None:
        for number in numbers:
            loop.add_signal_handler(number, _ignore)  # a second one must not disturb the end
        _after(STDIO_EXIT_S, exit_hard)
        stop()

    for number in numbers:
        loop.add_signal_handler(number, stop_once)


def _ignore() -> None:
    pass


def _end_process() -> NoReturn:
    """End without taking the interpreter apart.

    That is up to a second of computing on a busy machine, in which the timer of the hard exit can
    no longer run, while everything that outlives the process is in order already.
    """
    atexit._run_exitfuncs()
    os._exit(0)


def _after(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def _exit_hard(settings: Settings, registry: Registry) -> None:
    left = registry.reaper.recorded
    if left and settings.provider != "local":
        hand_off(settings, left)
    os._exit(0)


def _run(serving: Coroutine[Any, Any, None]) -> None:
    # Commands in embedded sandboxes are this process's user, too, where nobody is root.
    with asyncio.Runner(loop_factory=make_loop) as runner:
        give_back_regularly(runner.get_loop())
        runner.run(serving)


def _prepare_process() -> None:
    log_to_stderr()
    redact_libraries(*PROCESS_LOGGERS)
    keep_freed_memory()
    raise_limit()


def _warn_of_uploads(config: McpConfig) -> None:
    """Log at once what the first use of uploads would meet: they are opened as late as that."""
    try:
        config.transfers.check()
    except ConfigError as error:
        log.warning("uploads will not work: %s", error.reason)


def run_http(config: McpConfig) -> None:
    """Serve Streamable HTTP until SIGINT, SIGTERM or SIGHUP; the URL goes to standard error.

    Raises:
        ConfigError: E6000, settings that contradict each other, or an address beyond loopback
            without credentials and `insecure`, files of credentials that cannot be used, or an
            address that cannot.
    """
    settings = config.settings()
    config.check_exposure()
    _prepare_process()
    with listen(config.host, config.port) as listener:
        warn_if_unreachable(settings)
        print(
            f"agent-sandbox: MCP over Streamable HTTP at {base_url(listener)}{MCP_PATH}",
            file=sys.stderr,
            flush=True,
        )
        if not config.transfers.is_shared:  # else they are opened now, and an error ends the start
            _warn_of_uploads(config)
        _run(serve_http(config, listener))
