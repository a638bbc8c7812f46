"""Running Express: on a port for others, or as the child of a program on a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn

from agent_sandbox.errors import ConfigError
from agent_sandbox.express import preload
from agent_sandbox.express.address import (
    BACKLOG,
    greeting,
    is_near,
    listen,
    read_keys,
    url_host,
)
from agent_sandbox.express.connection import IDLE_TIMEOUT_S, Connection
from agent_sandbox.express.engine import Engine, Isolation, choose_kind
from agent_sandbox.express.isolation import Spawner
from agent_sandbox.express.logs import Form, configure_logging
from agent_sandbox.express.openat2 import require_openat2
from agent_sandbox.express.privileges import drop_privileges, seal_imports, service_ids
from agent_sandbox.express.selector import make_loop
from agent_sandbox.express.service import Service
from agent_sandbox.express.state import default_state_dir, open_state_dir
from agent_sandbox.express.unused import wait_until_unused
from agent_sandbox.http1 import ACCEPTS
from agent_sandbox.memory import give_back_regularly, keep_freed_memory
from agent_sandbox.open_files import raise_limit

_log = logging.getLogger(__name__)

_GRACE_S = 5
_END_S = 15
DRAIN_S = 5
"""How long a service for others lets transfers and foreground commands go on when it is to end."""


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
        domain: Name under which `{port}-{sandbox id}.{domain}` is a sandbox, or None.
        drain_s: Seconds that what is under way gets when it is to end; a second signal ends it.
        log_form: How log lines look.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_key_file: Path | None = None
    state_dir: Path | None = None
    insecure: bool = False
    isolation: Isolation = "auto"
    network: bool = False
    domain: str | None = None
    drain_s: int = DRAIN_S
    log_form: Form = "json"


def serve_tcp(config: ServeConfig) -> None:
    """Serve on a port until SIGTERM or SIGINT; print the URL on standard output when it listens.

    Owns the process: signals, logging, umask, privileges, and no import afterwards.

    Raises:
        ConfigError: E6000, with a `reason`: the address cannot be used or is open to others
            without keys, the key file or the state directory cannot be used, or the kernel is too
            old.
    """
    # Set for another service's workers, it would put our numbers into their files.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    from agent_sandbox.express.metrics import Metrics  # no child of a program pays for it

    keys = read_keys(config.api_key_file) if config.api_key_file else ()
    listener = listen(config.host, config.port)
    loopback = is_near(listener)
    if not (loopback or keys or config.insecure):
        listener.close()
        raise ConfigError(
            reason=f"{config.host} is open to others: give --api-key-file, or say --insecure."
        )
    name = url_host(listener)
    hosts = None
    if loopback and not keys:
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]", name, config.host.lower()})
    url = f"http://{name}:{listener.getsockname()[1]}"
    how = _How(config.isolation, config.network, "INFO", config.log_form)
    make = partial(Service, keys=keys, hosts=hosts, domain=config.domain, meter=Metrics)
    with _prepared(config.state_dir, how, make) as service:
        _log.info(
            greeting(
                url,
                loopback=loopback,
                keys=len(keys),
                kind=service.kind,
                network=config.network,
                domain=config.domain,
            )
        )
        _run(_Server(service, url=url, drain_s=config.drain_s), listener)


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
    how = _How(isolation, network, "WARNING", "json")
    with _prepared(state_dir, how, partial(Service, keys=(), hosts=None)) as service:
        if report_fd is not None:
            with open(report_fd, "wb", buffering=0) as report:
                report.write(b"started")
        _run(_Server(service, lifeline_fd=lifeline_fd, users_fd=users_fd), listener)


@dataclass(frozen=True, slots=True)
class _How:
    isolation: Isolation
    network: bool
    log_level: str
    log_form: Form


@contextlib.contextmanager
def _prepared(state_dir: Path | None, how: _How, make: Callable[..., Service]) -> Iterator[Service]:
    """Make the process fit to serve; the order matters."""
    configure_logging(how.log_level, how.log_form)
    require_openat2()
    uid, gid = service_ids()
    state = open_state_dir(state_dir or default_state_dir(), uid=uid, gid=gid)
    # Before the rights are dropped: the interpreter may lie where the service's user cannot read.
    raise_limit()  # and before the zygote: how much a command may have depends on it
    spawner = None
    if choose_kind(how.isolation) is not None:
        as_root = os.geteuid() == 0
        spawner = Spawner.launch(user=uid if as_root else None, group=gid if as_root else None)
    keep_freed_memory()
    os.umask(0o022)
    preload.load()
    drop_privileges(uid, gid)
    seal_imports()
    engine = Engine(spawner, isolation=how.isolation, network=how.network)
    yield make(state, engine=engine)


def _run(server: _Server, listener: socket.socket) -> None:
    listener.setblocking(False)
    with asyncio.Runner(loop_factory=make_loop) as runner:
        give_back_regularly(runner.get_loop())
        runner.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """uvicorn, ended by a signal or by the lifeline, with the sandboxes ended before it.

    Args:
        service: What it serves.
        lifeline_fd: The reading end of a pipe that ends it, or None.
        users_fd: What `unused.wait_until_unused` needs, or None.
        url: Printed once it listens, or None.
        drain_s: How long what is under way may go on when it is to end.
    """

    def __init__(
        self,
        service: Service,
        *,
        lifeline_fd: int | None = None,
        users_fd: int | None = None,
        url: str | None = None,
        drain_s: int = 0,
    ) -> None:
        super().__init__(uvicorn_config(service.app))
        self._service = service
        self._lifeline_fd = lifeline_fd
        self._url = url
        self._users_fd = users_fd
        self._outliving: asyncio.Task[None] | None = None
        self._unused: asyncio.Task[None] | None = None
        self._drain_s = drain_s
        self._drain: asyncio.Task[None] | None = None

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
        again = self.should_exit
        # The kernel ends us if something hangs, be it a thread: the next start sweeps the rest.
        signal.alarm(_END_S if again else _END_S + self._drain_s)
        self.should_exit = True
        if again and self._drain is not None:
            self._drain.cancel()

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
            listener.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then end the sandboxes: that ends the streams which uvicorn would wait for."""
        for server in self.servers:
            server.close()
        for waiting in (self._outliving, self._unused):
            if waiting is not None:
                waiting.cancel()
        if self._drain_s:
            _log.info("draining", extra={"fields": {"seconds_at_most": self._drain_s}})
            self._drain = asyncio.ensure_future(self._service.drain(self._drain_s))
            await asyncio.wait([self._drain])
        await self._service.close()
        _log.info("ended")
        await super().shutdown(sockets)


def _ignore() -> None:
    pass


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
        backlog=ACCEPTS,
        timeout_keep_alive=int(IDLE_TIMEOUT_S),
        timeout_graceful_shutdown=_GRACE_S,
    )
