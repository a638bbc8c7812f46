"""Background tasks: commands that go on after their call, found again by an id.

Nothing is remembered here. A task's id is that of its sandbox and the tag of its command, so that
the service alone knows what there is, also after this server was started anew. Who may use the
sandbox may use the task.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from agent_sandbox import Sandbox
from agent_sandbox.errors import (
    AgentSandboxError,
    ProcessNotFoundError,
    SandboxNotFoundError,
    SandboxOwnedError,
    SandboxTimeoutError,
    TaskNotFoundError,
    TaskQuotaError,
    UnsupportedError,
)
from agent_sandbox.limits import MAX_RETAINED_TASKS
from agent_sandbox.mcp_server.ownership import Registry, Use
from agent_sandbox.mcp_server.principals import Principal
from agent_sandbox.mcp_server.timing import time_limit
from agent_sandbox.models import CommandInfo

T = TypeVar("T")

PARALLEL_LOOKS = 8
"""Sandboxes that a listing looks at at once."""

_PREFIX = "task-"
_TASK_ID = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,127})\.([0-9a-f]{32})")
_MERGED = 'exec /bin/bash -c "$1" 2>&1'
_CLEAN_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as its sandbox tells of it."""

    task_id: str
    sandbox_id: str
    command: str
    exit_code: int | None
    retained: bool


class Tasks:
    """The tasks that the callers of one server may see.

    Args:
        registry: Who owns which sandbox.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._turns: dict[Principal, _Turn] = {}

    async def start(
        self,
        use: Use,
        sandbox_id: str | None,
        command: str,
        *,
        cwd: str | None,
        retain_s: int | None,
    ) -> str:
        """Start a command whose two streams are one, and return the task's id.

        A call that is cancelled leaves no command behind.

        Raises:
            TaskQuotaError: E5013: too many retained tasks run.
        """
        if retain_s is None:
            return await self._start(use, sandbox_id, command, cwd, None)
        async with self._turn_of(use.principal):  # counting and starting are one step
            if await self._count_retained(use) >= MAX_RETAINED_TASKS:
                raise TaskQuotaError
            return await self._start(use, sandbox_id, command, cwd, retain_s)

    @asynccontextmanager
    async def _turn_of(self, principal: Principal) -> AsyncIterator[None]:
        """Wait until no other call of this principal is within; those of others go on meanwhile."""
        turn = self._turns.setdefault(principal, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[principal]

    async def _start(
        self, use: Use, sandbox_id: str | None, command: str, cwd: str | None, retain_s: int | None
    ) -> str:
        token = secrets.token_hex(16)
        argv = ("/bin/bash", "-l", "-c", _MERGED, "bash", command)

        async def begin(sandbox: Sandbox) -> str:
            commands = sandbox.commands
            try:
                await commands.start(argv, cwd=cwd, tag=_PREFIX + token, retain_s=retain_s)
            except AgentSandboxError:
                raise
            except BaseException:  # cancelled: nobody will learn its id
                # An error of the clean-up must not take the place of the cancellation.
                with anyio.move_on_after(_CLEAN_UP_S, shield=True), suppress(AgentSandboxError):
                    await commands.kill(_PREFIX + token)
                raise
            return f"{sandbox.sandbox_id}.{token}"

        limit_s = self._registry.resolve_timeout_s
        return await self._registry.use(
            use, sandbox_id, begin, SandboxTimeoutError, limit_s, repeatable=False
        )

    async def visit(
        self, use: Use, task_id: str, operation: Callable[[Sandbox, str], Awaitable[T]]
    ) -> T:
        """Run an operation on a task's sandbox and the tag of its command.

        Raises:
            TaskNotFoundError: E5012: unknown, gone, or another's.
        """
        found = _TASK_ID.fullmatch(task_id)
        if found is None:
            raise TaskNotFoundError
        sandbox_id, token = found.groups()

        async def run(sandbox: Sandbox) -> T:
            return await operation(sandbox, _PREFIX + token)

        try:
            return await self._registry.visit(use, sandbox_id, run)
        except (SandboxNotFoundError, SandboxOwnedError, ProcessNotFoundError):
            raise TaskNotFoundError from None

    async def visible(self, use: Use) -> list[Task]:
        """Return the tasks in the scope's sandboxes, and in those that nobody owns.

        Of the latter a scope sees the retained ones only; where there are no scopes, all.
        """
        registry, scope = self._registry, use.scope
        ids = await self._own(use)
        owned = [one for one in ids if registry.is_owned(scope, one)]
        others = [one for one in ids if one not in owned and not registry.is_foreign(scope, one)]
        mine = await self._in(owned)
        free = await self._in(others)
        return mine + [task for task in free if scope is None or task.retained]

    async def _count_retained(self, use: Use) -> int:
        tasks = await self._in(await self._own(use))
        return sum(task.retained and task.exit_code is None for task in tasks)

    async def _own(self, use: Use) -> list[str]:
        """Return the ids of the principal's sandboxes."""
        with self._limit():
            found = await self._registry.client.list()
        return [info.sandbox_id for info in found if use.principal.may_see(info.metadata)]

    async def _in(self, sandbox_ids: list[str]) -> list[Task]:
        found: dict[str, list[Task]] = {}
        failed: list[AgentSandboxError] = []
        slots = anyio.Semaphore(PARALLEL_LOOKS)

        async def look(sandbox_id: str) -> None:
            async with slots:
                try:
                    sandbox = await self._registry.look(sandbox_id)
                    listed = await sandbox.commands.list(ended=True)
                except (SandboxNotFoundError, UnsupportedError):
                    return  # it has just ended, or nothing runs there
                except AgentSandboxError as error:  # a group would wrap it, and nobody know it
                    failed.append(error)
                    group.cancel_scope.cancel()
                    return
            tasks = [_task(sandbox_id, one) for one in listed]
            found[sandbox_id] = [task for task in tasks if task is not None]

        with self._limit():
            async with anyio.create_task_group() as group:
                for sandbox_id in sandbox_ids:
                    group.start_soon(look, sandbox_id)
        if failed:
            raise failed[0]
        return [task for sandbox_id in sandbox_ids for task in found.get(sandbox_id, [])]

    def _limit(self) -> AbstractContextManager[None]:
        return time_limit(self._registry.resolve_timeout_s, SandboxTimeoutError)


@dataclass(eq=False, slots=True)
class _Turn:
    """A principal's lock, kept while a call has it or waits for it."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0


def _task(sandbox_id: str, info: CommandInfo) -> Task | None:
    tag = info.tag or ""
    if not tag.startswith(_PREFIX):
        return None
    task_id = f"{sandbox_id}.{tag.removeprefix(_PREFIX)}"
    if not _TASK_ID.fullmatch(task_id):
        return None
    return Task(task_id, sandbox_id, info.argv[-1], info.exit_code, info.retained)
