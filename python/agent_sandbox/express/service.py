"""Express put together: state, threads, sandboxes and application, with one beginning and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent_sandbox.express.app import Express
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.isolation.config import Kind
from agent_sandbox.express.requests import KeyRing
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.express.spares import Spares
from agent_sandbox.express.state import Instance
from agent_sandbox.express.tally import Meter

_SWEEP_EVERY_S = 60.0


class Service:
    """One running Express.

    Args:
        state: The state directory, which the service takes over.
        keys: API keys; none accepts every caller.
        hosts: Host names that requests must be for, None for any.
        engine: How sandboxes run, which the service takes over.
        domain: See `app.Express`.
        meter: Makes what counts requests; None counts nothing and serves no `/metrics`.

    Raises:
        ConfigError: E6000: the state directory cannot be used.
    """

    def __init__(
        self,
        state: Descriptor,
        *,
        keys: tuple[str, ...],
        hosts: frozenset[str] | None,
        engine: Engine,
        domain: str | None = None,
        meter: Callable[[Sandboxes, KeyRing], Meter] | None = None,
    ) -> None:
        self._instance = Instance(state)
        self._disk = Disk()
        self._engine = engine
        self._spares = Spares(self._instance, self._disk, engine)
        self._sandboxes = Sandboxes(self._instance, self._disk, self._spares)
        self._sweep: asyncio.Task[None] | None = None
        ring = KeyRing(keys)
        self.app = Express(
            self._sandboxes,
            self._disk,
            ring,
            engine,
            hosts=hosts,
            domain=domain,
            meter=None if meter is None else meter(self._sandboxes, ring),
        )

    @property
    def kind(self) -> Kind | None:
        """What sandboxes are made of; None is files alone."""
        return self._engine.kind

    def start(self) -> None:
        """Begin to make spares, and to remove what crashed instances and failed removals leave."""
        self._spares.fill()
        self._sweep = asyncio.get_running_loop().create_task(self._sweep_for_ever())

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._disk.run(self._instance.sweep)
            await asyncio.sleep(_SWEEP_EVERY_S)

    def is_empty(self) -> bool:
        """Return whether there is no sandbox."""
        return not any(True for _ in self._sandboxes)

    async def outlive(self) -> None:
        """Let the retained commands come to their end, and end everything else now."""
        await self._sandboxes.outlive()

    async def drain(self, seconds: float) -> None:
        """Let what is under way come to its end, in so many seconds at most; nothing new begins.

        Sandboxes are not made any more, and connections are closed after their answer.
        """
        self.app.draining = True
        await self._sandboxes.drain(seconds)

    async def close(self) -> None:
        """End every sandbox, remove their directories, and give the state directory back."""
        await self._sandboxes.close()
        await self._engine.close()
        if self._sweep:
            self._sweep.cancel()
            await asyncio.wait([self._sweep])
        await self._disk.run(self._instance.close)
        self._disk.close()
