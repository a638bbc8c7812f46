"""The control plane: create, connect, list, inspect, prolong and kill sandboxes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import Response

from agent_sandbox.errors import ArgumentError, SandboxNotFoundError, UnsupportedError
from agent_sandbox.express.answers import json_answer
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.requests import KeyRing, body, header, query, read_message
from agent_sandbox.express.sandbox import Sandbox, checked_ttl
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.wire import e2b, headers

_MAX_PAGE = 100
_EPOCH = "1970-01-01T00:00:00Z"


class ControlPlane:
    """The handlers under `/sandboxes` and `/v2/sandboxes`.

    Args:
        sandboxes: What they control.
        keys: Who may call.
        engine: Says what sandboxes may have.
        domain: What callers are told to find data planes under, or None.
    """

    def __init__(
        self, sandboxes: Sandboxes, keys: KeyRing, engine: Engine, *, domain: str | None = None
    ) -> None:
        self._sandboxes = sandboxes
        self._keys = keys
        self._engine = engine
        self._domain = domain

    def _own(self, request: Request, *, ending: bool = False) -> Sandbox:
        """Return the sandbox of the URL; a foreign one looks like one that never was."""
        owner = self._keys.owner(request)
        sandbox = self._sandboxes.get(request.path_params["sandbox_id"], ending=ending)
        if sandbox.owner != owner:
            raise SandboxNotFoundError
        request.scope["agent_sandbox.sandbox"] = sandbox.sandbox_id[:8]
        return sandbox

    def _with_token(self, sandbox: Sandbox) -> e2b.Sandbox:
        return e2b.Sandbox(
            template_id=sandbox.template,
            sandbox_id=sandbox.sandbox_id,
            client_id="agent-sandbox",
            envd_version=e2b.ENVD_VERSION,
            envd_access_token=sandbox.access_token,
            domain=self._domain,
        )

    async def create(self, request: Request) -> Response:
        """Make a sandbox: 201 with its token."""
        owner = self._keys.owner(request)
        wanted = read_message(await body(request) or b"{}", e2b.NewSandbox)
        ttl_seconds = checked_ttl(wanted.timeout)
        if wanted.auto_pause:
            raise UnsupportedError
        sandbox = await self._sandboxes.create(
            ttl_seconds,
            template=wanted.template_id,
            metadata=wanted.metadata,
            variables=wanted.env_vars,
            network=self._engine.network(wanted.allow_internet_access),
            owner=owner,
        )
        request.scope["agent_sandbox.sandbox"] = sandbox.sandbox_id[:8]
        return json_answer(self._with_token(sandbox).to_json(), 201)

    async def connect(self, request: Request) -> Response:
        """Give the token again; the sandbox lives at least `timeout` seconds from now."""
        sandbox = self._own(request)
        wanted = read_message(await body(request) or b"{}", e2b.ConnectSandbox)
        self._sandboxes.set_ttl(sandbox, checked_ttl(wanted.timeout), shorten=False)
        if header(request, headers.CLAIM) == b"1":
            sandbox.released = False
        return json_answer(self._with_token(sandbox).to_json())

    async def list(self, request: Request) -> Response:
        """List the caller's sandboxes, the newest first, filtered and in pages."""
        owner = self._keys.owner(request)
        fields = query(request)
        wanted = _Filter(fields)
        found = [one for one in self._sandboxes if one.owner == owner and wanted.matches(one)]
        found.sort(key=lambda one: one.started_at, reverse=fields.get("order") != "asc")
        first = _whole(fields.get("nextToken", "0"))
        last = first + min(_whole(fields.get("limit", str(_MAX_PAGE))) or _MAX_PAGE, _MAX_PAGE)
        more = {headers.NEXT_TOKEN: str(last)} if last < len(found) else {}
        listed = (_listed(one).to_json() for one in found[first:last])
        return json_answer(b"[" + b",".join(listed) + b"]", more=more)

    async def info(self, request: Request) -> Response:
        """Describe one sandbox, without its token."""
        known = _listed(self._own(request)).model_dump() | {"domain": self._domain}
        detail = e2b.SandboxDetail.model_validate(known)
        return json_answer(detail.to_json())

    async def set_timeout(self, request: Request) -> Response:
        """Set when a sandbox ends, earlier or later."""
        sandbox = self._own(request)
        wanted = read_message(await body(request), e2b.SandboxTimeout)
        self._sandboxes.set_ttl(sandbox, checked_ttl(wanted.timeout))
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        """Refuse: a sandbox here has no state that could sleep."""
        self._own(request)
        raise UnsupportedError

    async def kill(self, request: Request) -> Response:
        """End a sandbox and remove what it held; see `headers.UNLESS_RETAINED`."""
        sandbox = self._own(request, ending=True)
        if header(request, headers.UNLESS_RETAINED) == b"1":
            await self._sandboxes.release(sandbox)
        else:
            await self._sandboxes.kill(sandbox)
        return Response(status_code=204)

    async def metrics(self, request: Request) -> Response:
        """Return no measurements: nothing is measured yet."""
        self._own(request)
        return json_answer(b"[]")


class _Filter:
    """The filters of a list request."""

    def __init__(self, fields: dict[str, str]) -> None:
        try:
            pairs = parse_qsl(fields.get("metadata", ""), keep_blank_values=True, errors="strict")
            after = fields.get("startedAfter")
            moment = datetime.fromisoformat(after or _EPOCH)
            if moment.tzinfo is None:  # the service's own zone is nobody's business
                moment = moment.replace(tzinfo=UTC)
            self._after = moment.timestamp()
        except (ValueError, OverflowError):
            raise ArgumentError from None
        # E2B's clients quote names and values once more than the query does.
        self._metadata = {(unquote(name), unquote(value)) for name, value in pairs}
        self._states = set(filter(None, fields.get("state", "").split(",")))
        self._template = fields.get("template")

    def matches(self, sandbox: Sandbox) -> bool:
        return (
            self._metadata <= sandbox.metadata.items()
            and (not self._states or "running" in self._states)
            and self._template in (None, sandbox.template)
            and sandbox.started_at > self._after
        )


def _whole(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise ArgumentError


def _listed(sandbox: Sandbox) -> e2b.ListedSandbox:
    return e2b.ListedSandbox(
        template_id=sandbox.template,
        sandbox_id=sandbox.sandbox_id,
        client_id="agent-sandbox",
        envd_version=e2b.ENVD_VERSION,
        started_at=datetime.fromtimestamp(sandbox.started_at, UTC),
        end_at=datetime.fromtimestamp(sandbox.end_at, UTC),
        cpu_count=os.cpu_count() or 1,
        memory_mb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        state="running",
        metadata=sandbox.metadata,
    )
