"""The service as an ASGI application: routes, and the one edge where errors become answers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_sandbox.errors import AgentSandboxError, AuthenticationError
from agent_sandbox.express.control import ControlPlane
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.download import Download, accepts_gzip
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.exchange import Exchange
from agent_sandbox.express.failures import RPC_PATHS, is_rpc, rest_answer, rpc_answer
from agent_sandbox.express.filesystem import Filesystem
from agent_sandbox.express.heads import SandboxHosts, host_name
from agent_sandbox.express.names import absolute_path
from agent_sandbox.express.processes.rpc import Processes
from agent_sandbox.express.requests import (
    KeyRing,
    check_user,
    header,
    list_header,
    named_sandbox,
    query,
    sandbox_of,
    signed_sandbox,
)
from agent_sandbox.express.sandbox import Sandbox
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.express.tally import Meter
from agent_sandbox.express.upload import write_form, write_raw
from agent_sandbox.wire.e2b import FILESYSTEM_SERVICE, ApiError
from agent_sandbox.wire.process import PROCESS_SERVICE

_log = logging.getLogger(__name__)

_Handler = Callable[[Request], Awaitable[ASGIApp]]

_DATA_PLANE = ("/files", "/health", *RPC_PATHS)


class Files:
    """The handlers of `/files` and `/health`.

    Args:
        sandboxes: Whose files they are.
        disk: Threads for reading and writing.
    """

    def __init__(self, sandboxes: Sandboxes, disk: Disk) -> None:
        self._sandboxes = sandboxes
        self._disk = disk

    async def health(self, request: Request) -> Response:
        """Say that a sandbox is running, or without one that the service is: 204."""
        named_sandbox(request, self._sandboxes)
        return Response(status_code=204)

    async def read(self, request: Request) -> ASGIApp:
        """Send a file."""
        fields = query(request)
        sandbox = self._authorised(request, fields, "read")
        gzip = accepts_gzip(list_header(request, "accept-encoding"))
        return Download(
            sandbox,
            absolute_path(fields.get("path", "")),
            self._disk,
            # HTTP/1.0 has no chunks: the end of such an answer could not be told from a break.
            gzip=gzip and request.scope["http_version"] != "1.0",
            head=request.method == "HEAD",
        )

    async def write(self, request: Request) -> ASGIApp:
        """Write one file from a raw body, or the files of a form."""
        fields = query(request)
        sandbox = self._authorised(request, fields, "write")
        media_type = (header(request, "content-type") or b"").partition(b";")[0].strip().lower()
        if media_type == b"multipart/form-data":
            return await write_form(request, sandbox, fields.get("path"), self._disk)
        path = absolute_path(fields.get("path", ""))
        return await write_raw(request, sandbox, path, self._disk)

    def _authorised(self, request: Request, fields: dict[str, str], operation: str) -> Sandbox:
        if "signature" in fields:
            named = named_sandbox(request, self._sandboxes)
            candidates = self._sandboxes if named is None else (named,)
            sandbox = signed_sandbox(fields, operation, candidates)
            request.scope["agent_sandbox.sandbox"] = sandbox.sandbox_id[:8]
        else:
            sandbox = sandbox_of(request, self._sandboxes)
        check_user(fields.get("username", ""))
        return sandbox


class _Endpoint:
    """A handler as an ASGI application that remembers its route for the log."""

    def __init__(self, route: str, handler: _Handler) -> None:
        self._route = route
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["agent_sandbox.route"] = self._route
        answer = await self._handler(Request(scope, receive, send))
        await answer(scope, receive, send)


class Express:
    """The ASGI application.

    Args:
        sandboxes: The sandboxes that it serves.
        disk: Threads for the disk.
        keys: Who may use the control plane.
        engine: Says what sandboxes may have.
        hosts: Host names that requests must be for, None for any. Guards a service without keys
            on loopback against web pages, which reach it through a name of their own.
        domain: See `heads.SandboxHosts`; None routes by header alone.
        meter: Counts requests and serves `/metrics`; None does neither.

    Attributes:
        draining: Set when the service ends: connections are then closed after their answer.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        disk: Disk,
        keys: KeyRing,
        engine: Engine,
        *,
        hosts: frozenset[str] | None = None,
        domain: str | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.draining = False
        self._hosts = hosts
        self._sandbox_hosts = None if domain is None else SandboxHosts(domain)
        self._meter = meter
        control = ControlPlane(sandboxes, keys, engine, domain=domain)
        files = Files(sandboxes, disk)
        filesystem = Filesystem(sandboxes, disk)
        processes = Processes(sandboxes)
        one = "/sandboxes/{sandbox_id}"
        table: list[tuple[str, str, _Handler]] = [
            ("GET", "/health", files.health),
            ("GET", "/files", files.read),
            ("POST", "/files", files.write),
            ("POST", f"/{FILESYSTEM_SERVICE}/{{rpc}}", filesystem.call),
            ("POST", f"/{PROCESS_SERVICE}/{{rpc}}", processes.call),
        ]
        for version in ("/v2", ""):  # older clients leave the version out
            table += [
                ("POST", f"{version}/sandboxes", control.create),
                ("GET", f"{version}/sandboxes", control.list),
                ("POST", f"{version}{one}/connect", control.connect),
            ]
        table += [
            ("GET", one, control.info),
            ("DELETE", one, control.kill),
            ("POST", f"{one}/timeout", control.set_timeout),
            ("POST", f"{one}/pause", control.pause),
            ("GET", f"{one}/metrics", control.metrics),
        ]
        if meter is not None:
            table.append(("GET", "/metrics", meter.answer))
        self._router = Router(
            [Route(path, _Endpoint(path, handler), methods=[m]) for m, path, handler in table],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and log one line about it."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, closes=lambda: self.draining)
        scope["app"] = self  # the router then raises for a wrong path or method
        error_id = ""
        answer: Response | None = None
        code = ""
        try:
            self._check_host(scope)
            of_a_sandbox = self._sandbox_hosts is not None and self._sandbox_hosts.route(scope)
            if of_a_sandbox and not scope["path"].startswith(_DATA_PLANE):
                raise HTTPException(404)  # a sandbox's name is for its data plane alone
            await self._router(scope, exchange.receive, exchange.send)
        except AgentSandboxError as error:
            answer, code = _answer(scope, error), error.code
        except HTTPException as error:
            text = "There is no such route." if error.status_code == 404 else "Wrong method."
            body = ApiError(code=error.status_code, message=text).to_json()
            answer = Response(body, error.status_code, error.headers, media_type="application/json")
        except Exception as error:  # noqa: BLE001 - the edge: a fixed text, and an id in the log
            error_id = secrets.token_hex(8)
            internal = AgentSandboxError()
            answer, code = _answer(scope, internal), internal.code
            answer.headers["agent-sandbox-error-id"] = error_id
            _log.error("internal error", extra={"fields": _where(error) | {"id": error_id}})
        if answer is not None and exchange.status == 0:
            await answer(scope, receive, exchange.send)
        # Otherwise the answer had begun: returning without its end makes the server cut it.
        code = code or scope.get("agent_sandbox.code", "")  # a stream ends with its error
        served = exchange.served(code)
        if self._meter is not None:
            self._meter.note(served)
        fields: dict[str, object] = {
            "method": served.method,
            "route": served.route,
            "status": served.status,
            "ms": round(exchange.seconds() * 1000, 1),
        }
        if code:
            fields["code"] = code
        if "agent_sandbox.sandbox" in scope:
            fields["sandbox"] = scope["agent_sandbox.sandbox"]
        _log.info("request", extra={"fields": fields})

    def _check_host(self, scope: Scope) -> None:
        if self._hosts is None:
            return
        name = host_name(scope)
        known = name in self._hosts
        if self._sandbox_hosts is not None:
            known = known or self._sandbox_hosts.holds(name)
        if not known or header(Request(scope), "origin") is not None:
            raise AuthenticationError


def _answer(scope: Scope, error: AgentSandboxError) -> Response:
    path: str = scope["path"]
    if is_rpc(path):
        return rpc_answer(error)
    return rest_answer(error, data_plane=path.startswith(_DATA_PLANE))


def _where(error: BaseException) -> dict[str, object]:
    """Return what may be logged of an unexpected exception: its type and place, never its text."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}" if trace else ""
    return {"exception": type(error).__name__, "place": place}
