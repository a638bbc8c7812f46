"""Running Express: on a port for others, or as the child of a program on a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from agent_sandbox.errors import ConfigError
from agent_sandbox.express import preload
from agent_sandbox.express.connection import IDLE_TIMEOUT_S, Connection
from agent_sandbox.express.engine import Engine, Isolation, choose_kind
from agent_sandbox.express.isolation import Spawner
from agent_sandbox.express.logs import configure_logging
from agent_sandbox.express.openat2 import require_openat2
from agent_sandbox.express.privileges import drop_privileges, seal_imports, service_ids
from agent_sandbox.express.service import Service
from agent_sandbox.express.state import default_state_dir, open_state_dir
from agent_sandbox.express.unused import wait_until_unused
from agent_sandbox.memory import keep_freed_memory

_BACKLOG = 1_024
_ACCEPTS = 16
"""Connections that asyncio accepts in one go; CPython 3.11 goes on so often without descriptors."""

_DESCRIPTORS = 65_536
_GRACE_S = 5
_END_S = 15


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How `serve_tcp` serves.

    Attributes:
        host: Name or address to listen on.
        port: 0 for any free one.
        api_key_file: Keys that callers may use, one a line; blank lines and `#` lines are skipped.
        state_dir: Where sandboxes live; None for `default_state_dir()`.
        insecure: Whether a non-loopback address without keys is accepted.
        isolation: See `agent_sandbox.express.engine.Isolation`.
        network: Whether sandboxes share this machine's network, its loopback services included.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_key_file: Path | None = None
    state_dir: Path | None = None
    insecure: bool = False
    isolation: Isolation = "auto"
    network: bool = False


def serve_tcp(config: ServeConfig) -> None:
    """Serve on a port until SIGTERM or SIGINT; print the URL on standard output when it listens.

    Owns the process: signals, logging, umask, privileges, and no import afterwards.

    Raises:
        ConfigError: E6000, with a `reason`: the address is open to others without keys, the key
            file or the state directory cannot be used, or the kernel is too old.
        OSError: The address cannot be bound.
    """
    keys = _read_keys(config.api_key_file) if config.api_key_file else ()
    listener = _listen(config.host, config.port)
    bound = listener.getsockname()
    loopback = ipaddress.ip_address(bound[0].partition("%")[0]).is_loopback
    if not (loopback or keys or config.insecure):
        listener.close()
        raise ConfigError(reason="The address is open to others: give API keys, or be insecure.")
    url_host = f"[{bound[0]}]" if listener.family is socket.AF_INET6 else bound[0]
    hosts = None
    if loopback and not keys:
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]", url_host, config.host.lower()})
    how = _How(config.isolation, config.network)
    with _prepared(config.state_dir, "INFO", how, keys=keys, hosts=hosts) as service:
        _run(service, listener, lifeline_fd=None, url=f"http://{url_host}:{bound[1]}")


def serve_fd(
    fd: int,
    lifeline_fd: int | None,
    *,
    users_fd: int | None = None,
    state_dir: Path | None,
    isolation: Isolation = "auto",
    network: bool = False,
    report_fd: int | None = None,
) -> None:
    """Serve on a listening unix socket until a pipe is closed, or until nobody uses the service.

    The socket's own permissions decide who may call: there are no API keys. Owns the process.

    Args:
        fd: The listening socket.
        lifeline_fd: The reading end of a pipe that the parent keeps open, or None.
        users_fd: See `unused.wait_until_unused`; None: the service does not end by itself.
        state_dir: Where sandboxes live; None for `default_state_dir()`.
        isolation: As in `ServeConfig`.
        network: As in `ServeConfig`.
        report_fd: A pipe that gets `started` when nothing is left that could fail; stays open if
            it fails.

    Raises:
        ConfigError: E6000, with a `reason`.
    """
    listener = socket.socket(fileno=fd)
    for passed in (fd, lifeline_fd, users_fd, report_fd):
        if passed is not None:
            os.set_inheritable(passed, False)  # the parent had to make them inheritable
    how = _How(isolation, network)
    with _prepared(state_dir, "WARNING", how, keys=(), hosts=None) as service:
        if report_fd is not None:
            with open(report_fd, "wb", buffering=0) as report:
                report.write(b"started")
        _run(service, listener, lifeline_fd, url=None, users_fd=users_fd)


@dataclass(frozen=True, slots=True)
class _How:
    isolation: Isolation
    network: bool


@contextlib.contextmanager
def _prepared(
    state_dir: Path | None,
    log_level: str,
    how: _How,
    *,
    keys: tuple[str, ...],
    hosts: frozenset[str] | None,
) -> Iterator[Service]:
    """Make the process fit to serve; the order matters."""
    configure_logging(log_level)
    require_openat2()
    uid, gid = service_ids()
    state = open_state_dir(state_dir or default_state_dir(), uid=uid, gid=gid)
    # Before the rights are dropped: the interpreter may lie where the service's user cannot read.
    spawner = None
    if choose_kind(how.isolation) is not None:
        as_root = os.geteuid() == 0
        spawner = Spawner.launch(user=uid if as_root else None, group=gid if as_root else None)
    keep_freed_memory()
    os.umask(0o022)
    _raise_descriptor_limit()
    preload.load()
    drop_privileges(uid, gid)
    seal_imports()
    engine = Engine(spawner, isolation=how.isolation, network=how.network)
    yield Service(state, keys=keys, hosts=hosts, engine=engine)


def _run(
    service: Service,
    listener: socket.socket,
    lifeline_fd: int | None,
    *,
    url: str | None,
    users_fd: int | None = None,
) -> None:
    listener.setblocking(False)
    server = _Server(service, lifeline_fd, url, users_fd)
    with asyncio.Runner() as runner:
        runner.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """uvicorn, ended by a signal or by the lifeline, with the sandboxes ended before it."""

    def __init__(
        self, service: Service, lifeline_fd: int | None, url: str | None, users_fd: int | None
    ) -> None:
        super().__init__(uvicorn_config(service.app))
        self._service = service
        self._lifeline_fd = lifeline_fd
        self._url = url
        self._users_fd = users_fd
        self._outliving: asyncio.Task[None] | None = None
        self._unused: asyncio.Task[None] | None = None

    @property
    def _is_child(self) -> bool:
        return self._lifeline_fd is not None or self._users_fd is not None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals through the loop; uvicorn's own way ends the process by the signal."""
        loop = asyncio.get_running_loop()
        # A child shares its parent's terminal: Ctrl-C there is for the parent to decide.
        loop.add_signal_handler(signal.SIGINT, _ignore if self._is_child else self._stop)
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        if self._lifeline_fd is not None:
            os.set_blocking(self._lifeline_fd, False)
            loop.add_reader(self._lifeline_fd, self._read_lifeline, self._lifeline_fd)
        self._service.start()
        if self._users_fd is not None:
            unused = wait_until_unused(self._service.is_empty, self._users_fd)
            self._unused = loop.create_task(unused)
            self._unused.add_done_callback(lambda _: self._stop())
        if self._url is not None:  # whoever reads it may end us at once: the handlers stand
            print(self._url, flush=True)
        yield

    def _stop(self) -> None:
        # The kernel ends us if something hangs, be it a thread: the next start sweeps the rest.
        signal.alarm(_END_S)
        self.should_exit = True

    def _read_lifeline(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(fd, 4_096):
                loop = asyncio.get_running_loop()
                loop.remove_reader(fd)
                self._outliving = loop.create_task(self._service.outlive())
                self._outliving.add_done_callback(lambda _: self._stop())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; the queue of the kernel may be longer than what is accepted in one go."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the sandboxes first: that ends the streams which uvicorn would wait for."""
        for server in self.servers:
            server.close()
        for waiting in (self._outliving, self._unused):
            if waiting is not None:
                waiting.cancel()
        await self._service.close()
        await super().shutdown(sockets)


def _ignore() -> None:
    pass


def _raise_descriptor_limit() -> None:
    """Use what the system allows: a sandbox takes one descriptor, a transfer up to three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def uvicorn_config(app: object) -> uvicorn.Config:
    """Return how uvicorn is to run: without logging and headers of its own."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # starlette's and uvicorn's ASGI types differ in name only
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        interface="asgi3",
        backlog=_ACCEPTS,
        timeout_keep_alive=int(IDLE_TIMEOUT_S),
        timeout_graceful_shutdown=_GRACE_S,
    )


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _read_keys(path: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in path.read_text("ascii").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise ConfigError(reason="The file of API keys cannot be read.") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(reason="The file of API keys holds no key.")
    return keys
