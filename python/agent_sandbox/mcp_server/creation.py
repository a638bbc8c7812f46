"""Sandboxes in the making: none is made and lost, whoever waits for it or goes away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from agent_sandbox import Sandbox, SandboxClient
from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.mcp_server.logs import log_unexpected
from agent_sandbox.mcp_server.principals import Principal
from agent_sandbox.mcp_server.renewal import Lease


@dataclass(frozen=True, eq=False, slots=True)
class Handle:
    """A sandbox that this server is connected to, with its lease, and whose it is."""

    sandbox: Sandbox
    lease: Lease
    principal: Principal

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self.sandbox.sandbox_id


class Creation:
    """A sandbox in the making that several calls wait for.

    It goes on when a waiting call is cancelled, so that no sandbox is made and lost.

    Attributes:
        abandoned: Nobody waits any more, and nothing owns what is made.
    """

    def __init__(self) -> None:
        self.abandoned = False
        self._done = anyio.Event()
        self._outcome: Handle | AgentSandboxError | None = None

    @property
    def made(self) -> Handle | None:
        """The sandbox, once there is one."""
        return None if isinstance(self._outcome, AgentSandboxError) else self._outcome

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._outcome is not None

    def settle(self, outcome: Handle | AgentSandboxError) -> None:
        """Give every waiter the sandbox or the error."""
        self._outcome = outcome
        self._done.set()

    async def wait(self) -> Handle:
        """Return the sandbox, or raise what stopped it from being made."""
        await self._done.wait()
        if isinstance(self._outcome, AgentSandboxError):
            # Each waiter raises its own: a shared exception would collect all their tracebacks.
            raise type(self._outcome)(**vars(self._outcome))
        assert self._outcome is not None  # noqa: S101 - settled
        return self._outcome


class Maker:
    """Makes sandboxes in the server's task group, longer than a call waits for one.

    A call that is cancelled or out of time would otherwise leave a sandbox behind that was made
    after all and belongs to nobody.

    Args:
        client: Where sandboxes are made.
        tasks: Where the making runs.
        deadline_s: Wall-clock seconds after which it is given up.
    """

    def __init__(self, client: SandboxClient, tasks: TaskGroup, deadline_s: float) -> None:
        self._client = client
        self._tasks = tasks
        self._deadline_s = deadline_s
        self._under_way = 0
        self._idle = anyio.Event()

    def begin(
        self, principal: Principal, ttl_seconds: int, keep: Callable[[Creation, Handle], None]
    ) -> Creation:
        """Begin to make a sandbox. Never waits.

        Args:
            principal: Whose it will be.
            ttl_seconds: Its life.
            keep: Takes the sandbox before anybody who waits learns of it. An error of ours that it
                raises is the outcome in place of the sandbox.
        """
        creation = Creation()
        self._under_way += 1
        self._tasks.start_soon(self._make, creation, principal, ttl_seconds, keep)
        return creation

    async def settled(self) -> None:
        """Wait until nothing is being made."""
        while self._under_way:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def _make(
        self,
        creation: Creation,
        principal: Principal,
        ttl_seconds: int,
        keep: Callable[[Creation, Handle], None],
    ) -> None:
        outcome: Handle | AgentSandboxError
        try:
            sandbox = await self._client.create(
                ttl_seconds=ttl_seconds, metadata=principal.metadata, deadline_s=self._deadline_s
            )
            outcome = Handle(sandbox, Lease(sandbox, ttl_seconds, self._tasks), principal)
            keep(creation, outcome)
        except AgentSandboxError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - the waiters need an answer in every case
            log_unexpected("creating a sandbox", error)
            outcome = AgentSandboxError()
        finally:
            self._under_way -= 1
            self._idle.set()
        creation.settle(outcome)
