"""The upload service of one running server: opened on first need, ended with the server."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp

from agent_sandbox.errors import AgentSandboxError, ConfigError, UploadError
from agent_sandbox.express.address import listen
from agent_sandbox.mcp_server.logs import log, log_unexpected
from agent_sandbox.mcp_server.sockets import base_url
from agent_sandbox.mcp_server.transfers.audit_file import audit_file
from agent_sandbox.mcp_server.transfers.directories import (
    Locked,
    own_directory,
    process_directory,
    shared_directory,
)
from agent_sandbox.mcp_server.transfers.listener import listening
from agent_sandbox.mcp_server.transfers.settings import TransferSettings, default_directory
from agent_sandbox.uploads.http import upload_routes
from agent_sandbox.uploads.metrics import is_near, metrics_route
from agent_sandbox.uploads.models import Principal
from agent_sandbox.uploads.service import UploadService

_KEPT_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class Served:
    """How a server with HTTP of its own serves the routes.

    Attributes:
        public_url: Where they are reached, unless the settings say something else.
        admits: Says whether a credential still stands; None where nobody is asked for one.
        measures: Says who may see the metrics.
    """

    public_url: str
    admits: Callable[[str], bool] | None = None
    measures: Callable[[Request], bool] = is_near


class Uploads:
    """Upload sessions for the tools of one server. Not thread-safe.

    Nothing is made before the first use: no directory, no database, no socket.

    Attributes:
        process: The principal of calls over STDIO, new for each process.
        placing_in: Which sandbox an attempt of placing went to, by upload id, for those that
            named none; kept until the outcome is known.

    Args:
        settings: How and where.
        tasks: Runs the service; it must outlive this object's use.
        served: By whom the routes are served already; None opens a listener of its own.
    """

    def __init__(
        self, settings: TransferSettings, tasks: TaskGroup, served: Served | None = None
    ) -> None:
        identity = f"process:{secrets.token_hex(16)}"
        self.process = Principal(identity, identity)
        self.placing_in: OrderedDict[str, str] = OrderedDict()
        self._settings = settings
        self._tasks = tasks
        self._served = served
        self._opening = anyio.Lock()
        self._opened: tuple[UploadService, ASGIApp] | None = None
        self._told: str | None = None
        self._end = anyio.Event()
        self._ended = anyio.Event()

    async def service(self) -> UploadService:
        """Return the running service.

        Raises:
            ConfigError: E6000, the settings cannot work on this machine.
            UploadError: The database or the storage cannot be opened.
        """
        return (await self._open())[0]

    async def app(self) -> ASGIApp:
        """Return the application that serves uploads, downloads and `/llms.txt`."""
        return (await self._open())[1]

    def note_attempt(self, upload_id: str, sandbox_id: str) -> None:
        """Remember where an attempt of placing went."""
        self.placing_in[upload_id] = sandbox_id
        while len(self.placing_in) > _KEPT_ATTEMPTS:
            self.placing_in.popitem(last=False)

    async def end(self, timeout_s: float) -> None:
        """End the service; what is under way is written down, in that time."""
        self._end.set()
        if self._opened is not None:
            with anyio.move_on_after(timeout_s):
                await self._ended.wait()

    async def _open(self) -> tuple[UploadService, ASGIApp]:
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    # In a task of the server's: the service outlives the call that needs it first.
                    try:
                        self._opened = await self._tasks.start(self._run)
                    except AgentSandboxError as error:
                        self._tell(error)
                        raise
        return self._opened

    def _tell(self, error: AgentSandboxError) -> None:
        """Log what keeps uploads from starting, once: a tool's result shows the fixed text only."""
        reason = getattr(error, "reason", error.text)
        ends_the_server = self._served is not None and self._settings.is_shared  # which says why
        if not ends_the_server and reason != self._told:
            self._told = reason
            log.error("uploads cannot start: %s", reason)

    async def _run(self, *, task_status: TaskStatus[tuple[UploadService, ASGIApp]]) -> None:
        self._ended = anyio.Event()
        started = False
        try:
            async with self._running() as opened, anyio.create_task_group() as upkeep:
                upkeep.start_soon(_keep_up, opened[0])
                task_status.started(opened)
                started = True
                await self._end.wait()
                upkeep.cancel_scope.cancel()
        except Exception as error:
            if started:  # nobody waits for it, and the server must end in order all the same
                log_unexpected("the end of uploads", error)
                return
            if isinstance(error, OSError):
                kind = type(error).__name__
                raise ConfigError(
                    reason=f"Uploads cannot use their directory or address ({kind})."
                ) from None
            raise
        finally:
            self._ended.set()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[tuple[UploadService, ASGIApp]]:
        settings = self._settings
        async with AsyncExitStack() as stack:
            if settings.audit_file is not None:
                _keep_audit(stack, settings.audit_file)
            locked = await self._directory(stack)
            directory = None if locked is None else locked.path
            listener = None
            admits = None
            measures: Callable[[Request], bool] = is_near
            if self._served is not None:
                url, admits = self._served.public_url, self._served.admits
                measures = self._served.measures
            else:
                listener = listen(settings.host, settings.port, option="--upload-{}")
                stack.callback(listener.close)
                url = base_url(listener)
            config = settings.service_config(url, directory)
            store = settings.open_store(directory)
            stack.push_async_callback(store.close)
            await store.migrate()
            blobs = settings.open_blobs(directory)
            service = UploadService(config, store, blobs, admits=admits)
            stack.push_async_callback(service.drained)
            if locked is not None:
                await service.recover(abandon_all=locked.alone and settings.database is None)
                await locked.share()
            routes = upload_routes(service)
            if settings.metrics:
                routes.append(metrics_route(service, allowed=measures))
            app = Starlette(routes=routes)
            if listener is not None:
                await stack.enter_async_context(listening(app, config, listener))
            stack.push_async_callback(self._revoke_own, service)
            yield service, app

    async def _directory(self, stack: AsyncExitStack) -> Locked | None:
        settings = self._settings
        if settings.directory is not None:
            opening = shared_directory(Path(settings.directory))
        elif settings.bucket is not None:  # and a database: the settings say so
            return None
        elif self._served is not None:
            own_directory(default_directory())
            opening = shared_directory(default_directory() / "server")
        else:
            opening = process_directory(default_directory())
        return await stack.enter_async_context(opening)

    async def _revoke_own(self, service: UploadService) -> None:
        """Kill the unused secrets of this process, whose principal ends with it."""
        try:
            await service.revoke_principal(self.process.credential_id)
        except UploadError as error:
            log.warning("the sessions of this process are left to expire (%s)", error.code)


def _keep_audit(stack: AsyncExitStack, path: str) -> None:
    try:
        stack.enter_context(audit_file(path))
    except OSError:
        raise ConfigError(
            reason="The audit file of uploads (--upload-audit-file) cannot be opened."
        ) from None


async def _keep_up(service: UploadService) -> None:
    try:
        await service.run_upkeep()
    except Exception as error:  # noqa: BLE001 - the server lives on without its sweeper
        log_unexpected("the upkeep of uploads", error)
