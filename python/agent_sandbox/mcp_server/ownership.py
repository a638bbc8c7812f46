"""Which sandbox a call uses, who owns it, and what happens when its owner ends."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from agent_sandbox import Sandbox, SandboxClient
from agent_sandbox.errors import (
    AgentSandboxError,
    SandboxNotFoundError,
    SandboxOwnedError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    TransferError,
)
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.creation import Creation, Handle, Maker
from agent_sandbox.mcp_server.principals import ANONYMOUS, Principal
from agent_sandbox.mcp_server.reaper import Reaper
from agent_sandbox.mcp_server.renewal import Lease
from agent_sandbox.mcp_server.scopes import Scope
from agent_sandbox.mcp_server.timing import time_limit

T = TypeVar("T")

KEPT_HANDLES = 1024
"""Sandboxes without an owner whose connection is remembered, so that a call need not connect."""

_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}")


def check_sandbox_id(sandbox_id: str) -> None:
    """Refuse an id that no service gives out, before it gets into a URL.

    Raises:
        SandboxNotFoundError: E5001, since there can be no such sandbox.
    """
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise SandboxNotFoundError


@dataclass(eq=False, slots=True)
class Use:
    """What one call did with sandboxes.

    Attributes:
        scope: What owns the sandboxes of the call; None where there are no scopes.
        principal: Whose call it is.
        sandbox_id: The sandbox it used, as soon as one is resolved.
        created: It made a sandbox that no earlier call knew.
    """

    scope: Scope | None
    principal: Principal
    sandbox_id: str | None = None
    created: bool = False


class Registry:
    """Resolves, adopts and ends. One for each running server; not thread-safe.

    Attributes:
        client: Where the sandboxes are.
        reaper: Destroys what scopes leave.
        process_scope: The scope of calls over STDIO.
        resolve_timeout_s: Longest wait for one answer about sandboxes.
    """

    def __init__(self, client: SandboxClient, config: McpConfig, tasks: TaskGroup) -> None:
        self.client = client
        self.reaper = Reaper(client, tasks)
        self.process_scope = Scope(ANONYMOUS)
        self.resolve_timeout_s = config.resolve_timeout_s
        self._config = config
        self._tasks = tasks
        self._maker = Maker(client, tasks, 4 * config.resolve_timeout_s)
        self._scopes: set[Scope] = {self.process_scope}
        self._owners: dict[str, Scope] = {}
        self._handles: OrderedDict[str, Handle] = OrderedDict()

    # --- Scopes -----------------------------------------------------------------------------

    def open_scope(self, principal: Principal, session_id: str | None = None) -> Scope:
        """Return a new scope, of an HTTP session if it has an id."""
        scope = Scope(principal, session_id)
        self._scopes.add(scope)
        return scope

    def owning_sessions(self) -> frozenset[str]:
        """Return the ids of the sessions that own a sandbox, or for which one is being made."""
        return frozenset(
            scope.session_id
            for scope in self._scopes
            if scope.session_id is not None
            and (scope.owned or (scope.creating is not None and not scope.creating.is_settled))
        )

    def end_scope(self, scope: Scope) -> None:
        """Record everything the scope owns for destruction, and begin it. Never waits."""
        scope.ended = True
        scope.default = None
        self._scopes.discard(scope)
        doomed = sorted(scope.owned)
        for sandbox_id in doomed:
            self.forget(sandbox_id)
        self.reaper.doom(doomed)

    def end_all(self) -> None:
        """End every scope: the server stops."""
        for scope in list(self._scopes):
            self.end_scope(scope)

    async def drain(self, timeout_s: float) -> frozenset[str]:
        """Wait until nothing is made or destroyed, at most `timeout_s`; return what is left.

        What is still being made when its scope ends is destroyed as soon as it is there.
        """
        with anyio.move_on_after(timeout_s):
            await self._maker.settled()
            await self.reaper.drain(timeout_s)
        return self.reaper.recorded

    def forget(self, sandbox_id: str) -> None:
        """Drop what is known of a sandbox that is gone or not ours any more."""
        self._handles.pop(sandbox_id, None)
        scope = self._owners.pop(sandbox_id, None)
        if scope is None:
            return
        scope.owned.discard(sandbox_id)
        if scope.default is not None and scope.default.sandbox_id == sandbox_id:
            scope.default = None
            scope.replacing = True

    # --- Using a sandbox ----------------------------------------------------------------------

    async def use(
        self,
        use: Use,
        sandbox_id: str | None,
        operation: Callable[[Sandbox], Awaitable[T]],
        timeout_error: type[AgentSandboxError],
        timeout_s: float | None = None,
        *,
        repeatable: bool = True,
    ) -> T:
        """Resolve a sandbox and run one operation on it, within `timeout_s` or that of a transfer.

        A named sandbox is adopted by the scope, also when the operation then fails. Without a
        name the default is used; if it turns out to be gone, a new one is made and used instead.
        An operation that is not `repeatable` never begins twice: the default is looked at before,
        and one that goes meanwhile is not replaced.

        Raises:
            SandboxNotFoundError: E5001, the sandbox is gone, or is another principal's.
            SandboxOwnedError: E5002, another scope of the same principal owns it.
            SandboxTimeoutError: E5004, it was not resolved in time.
            AgentSandboxError: What the operation raised, or `timeout_error`.
        """
        timeout_s = timeout_s or self._config.transfer_timeout_s
        handle = await self._resolve(use, sandbox_id)
        if not repeatable and sandbox_id is None and await self._is_gone(handle):
            self.forget(handle.sandbox_id)
            handle = await self._resolve(use, None)
        try:
            return await self._run(use, handle, operation, timeout_error, timeout_s)
        except (SandboxNotFoundError, SandboxUnavailableError, TransferError) as error:
            if not isinstance(error, SandboxNotFoundError) and not await self._is_gone(handle):
                raise
            self.forget(handle.sandbox_id)
            if sandbox_id is not None or not repeatable:
                raise SandboxNotFoundError from None
        handle = await self._resolve(use, None)
        return await self._run(use, handle, operation, timeout_error, timeout_s)

    async def _run(
        self,
        use: Use,
        handle: Handle,
        operation: Callable[[Sandbox], Awaitable[T]],
        timeout_error: type[AgentSandboxError],
        timeout_s: float,
    ) -> T:
        try:
            with handle.lease.held(), time_limit(timeout_s, timeout_error):
                return await operation(handle.sandbox)
        except anyio.get_cancelled_exc_class():
            if use.scope is None and use.created:
                self.reaper.doom([handle.sandbox_id])  # nobody will ever learn its id
            raise

    async def _is_gone(self, handle: Handle) -> bool:
        # Services other than Express may answer a file call to a dead sandbox with a bad gateway.
        try:
            with time_limit(self.resolve_timeout_s, SandboxTimeoutError):
                await self.client.info(handle.sandbox_id)
        except SandboxNotFoundError:
            return True
        except AgentSandboxError:
            return False
        return False

    # --- Resolution ---------------------------------------------------------------------------

    async def _resolve(self, use: Use, sandbox_id: str | None) -> Handle:
        scope = use.scope
        with time_limit(self.resolve_timeout_s, SandboxTimeoutError):
            if sandbox_id is not None:
                handle = await self._named(use, sandbox_id)
            elif scope is None:
                handle = await self._create(use, self._config.ttl_seconds)
                use.created = True
            else:
                handle = scope.default or await self._default(scope)
        use.sandbox_id = handle.sandbox_id
        return handle

    async def find(self, principal: Principal, sandbox_id: str) -> Handle | None:
        """Return a sandbox that is known, None for one that is not connected yet.

        A foreign sandbox costs the same round trip as one that does not exist.

        Raises:
            SandboxNotFoundError: E5001, it does not exist or is another principal's.
        """
        check_sandbox_id(sandbox_id)
        handle = self._own_handle(principal, sandbox_id)
        if handle is None:
            info = await self.client.info(sandbox_id)
            if not principal.may_see(info.metadata):
                raise SandboxNotFoundError
        return handle

    def _own_handle(self, principal: Principal, sandbox_id: str) -> Handle | None:
        handle = self._handles.get(sandbox_id)
        return handle if handle is not None and handle.principal == principal else None

    async def _named(self, use: Use, sandbox_id: str) -> Handle:
        handle = await self.find(use.principal, sandbox_id)
        self._check_owner(use.scope, sandbox_id)  # before connecting: a refused call renews nothing
        if handle is None:
            ttl_seconds = self._config.ttl_seconds
            sandbox = await self.client.connect(sandbox_id, ttl_seconds=ttl_seconds)
            self._check_owner(use.scope, sandbox_id)
            handle = Handle(sandbox, Lease(sandbox, ttl_seconds, self._tasks), use.principal)
        self._remember(use.scope, handle)
        return handle

    def _check_owner(self, scope: Scope | None, sandbox_id: str) -> None:
        if self.is_foreign(scope, sandbox_id):
            raise SandboxOwnedError

    def _remember(self, scope: Scope | None, handle: Handle) -> None:
        sandbox_id = handle.sandbox_id
        if scope is not None:
            if scope.ended:  # it ended while the sandbox was being found or made
                self.reaper.doom([sandbox_id])
                raise SandboxNotFoundError
            scope.owned.add(sandbox_id)
            self._owners[sandbox_id] = scope
        self._handles[sandbox_id] = handle
        self._handles.move_to_end(sandbox_id)
        if len(self._handles) - len(self._owners) > KEPT_HANDLES:
            oldest = next(known for known in self._handles if known not in self._owners)
            del self._handles[oldest]

    # --- Creation -----------------------------------------------------------------------------

    async def create(self, use: Use, ttl_seconds: int) -> Handle:
        """Make a sandbox for the scope; it becomes the default if there is none.

        Raises:
            SandboxTimeoutError: E5004, it did not become ready in time.
        """
        with time_limit(self.resolve_timeout_s, SandboxTimeoutError):
            handle = await self._create(use, ttl_seconds)
        use.sandbox_id, use.created = handle.sandbox_id, True
        if use.scope is not None and use.scope.default is None:
            use.scope.default = handle
            use.scope.replacing = False
        return handle

    async def _default(self, scope: Scope) -> Handle:
        if scope.creating is None or scope.creating.is_settled:
            scope.creating = self._begin(scope, scope.principal, self._config.ttl_seconds)
        return await scope.creating.wait()

    async def _create(self, use: Use, ttl_seconds: int) -> Handle:
        creation = self._begin(use.scope, use.principal, ttl_seconds)
        try:
            return await creation.wait()
        except anyio.get_cancelled_exc_class():
            creation.abandoned = True
            if use.scope is None and creation.made is not None:
                self.reaper.doom([creation.made.sandbox_id])
            raise

    def _begin(self, scope: Scope | None, principal: Principal, ttl_seconds: int) -> Creation:
        return self._maker.begin(principal, ttl_seconds, partial(self._keep, scope))

    def _keep(self, scope: Scope | None, creation: Creation, handle: Handle) -> None:
        if creation.abandoned:
            self.reaper.doom([handle.sandbox_id])
            return
        self._remember(scope, handle)
        if scope is not None and scope.creating is creation and scope.default is None:
            scope.default = handle

    # --- Without adopting ----------------------------------------------------------------------

    async def visit(
        self, use: Use, sandbox_id: str, operation: Callable[[Sandbox], Awaitable[T]]
    ) -> T:
        """Run one operation on a named sandbox, which renews it and changes no ownership.

        Raises:
            SandboxNotFoundError: E5001, it does not exist or is another principal's.
            SandboxOwnedError: E5002, another scope owns it.
            SandboxTimeoutError: E5004.
        """
        with time_limit(self.resolve_timeout_s, SandboxTimeoutError):
            handle = await self.find(use.principal, sandbox_id)
            self._check_owner(use.scope, sandbox_id)
            if handle is None:
                ttl_seconds = self._config.ttl_seconds
                sandbox = await self.client.connect(
                    sandbox_id, ttl_seconds=ttl_seconds, claim=False
                )
                self._check_owner(use.scope, sandbox_id)
                handle = Handle(sandbox, Lease(sandbox, ttl_seconds, self._tasks), use.principal)
            try:
                with handle.lease.held():
                    result = await operation(handle.sandbox)
            except (SandboxUnavailableError, TransferError):
                if not await self._is_gone(handle):
                    raise
                raise SandboxNotFoundError from None
        use.sandbox_id = sandbox_id
        return result

    async def look(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox for a look that neither renews nor adopts it.

        Raises:
            SandboxNotFoundError: E5001.
        """
        handle = self._handles.get(sandbox_id)
        if handle is not None:
            return handle.sandbox
        return await self.client.connect(sandbox_id, ttl_seconds=1, claim=False)

    def is_foreign(self, scope: Scope | None, sandbox_id: str) -> bool:
        """Tell whether another scope owns this sandbox."""
        return self._owners.get(sandbox_id, scope) is not scope

    def is_default(self, scope: Scope | None, sandbox_id: str) -> bool:
        """Tell whether calls of this scope without `sandbox_id` use this sandbox."""
        default = scope.default if scope is not None else None
        return default is not None and default.sandbox_id == sandbox_id

    def is_owned(self, scope: Scope | None, sandbox_id: str) -> bool:
        """Tell whether the scope's end destroys this sandbox."""
        return scope is not None and sandbox_id in scope.owned

    async def settle_lease(self, principal: Principal, sandbox_id: str) -> None:
        """Let the end that the service tells next include the renewals of calls that have ended."""
        handle = self._own_handle(principal, sandbox_id)
        if handle is not None:
            await handle.lease.settle()

    async def settle_leases(self, principal: Principal) -> None:
        """Do so for every sandbox of the principal that is known."""
        for sandbox_id in list(self._handles):
            await self.settle_lease(principal, sandbox_id)

    def set_lease_ttl(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Let later renewals of a known sandbox use another time."""
        handle = self._handles.get(sandbox_id)
        if handle is not None:
            handle.lease.ttl_seconds = ttl_seconds
