"""How sandboxes run here: in bubblewrap, without isolation, or as files alone."""

from __future__ import annotations

import asyncio
from typing import Literal

from agent_sandbox.errors import ConfigError, SandboxUnavailableError
from agent_sandbox.express.isolation import (
    Limits,
    RunningSandbox,
    SandboxConfig,
    Spawner,
    doctor,
    find_bubblewrap,
    seccomp,
)
from agent_sandbox.express.isolation.config import Kind

Isolation = Literal["auto", "bubblewrap", "none"]
"""What an operator may ask for.

`auto` isolates where this machine can, and offers files alone where it cannot; `bubblewrap` refuses
to start without; `none` runs commands as the service's user, with no isolation at all.
"""


def choose_kind(isolation: Isolation) -> Kind | None:
    """Return what sandboxes are made of on this machine; None is files alone.

    Raises:
        ConfigError: E6000: isolation was demanded and there is no bubblewrap.
    """
    if isolation == "none":
        return "none"
    if find_bubblewrap() is not None and _has_filter():
        return "bubblewrap"
    if isolation == "bubblewrap":
        raise ConfigError(reason="There is no bubblewrap on this machine: install it.")
    return None


def _has_filter() -> bool:
    try:
        seccomp.build_filter()
    except NotImplementedError:
        return False
    return True


class Engine:
    """Brings sandboxes up; belongs to one event loop.

    Args:
        spawner: The zygote, which the engine takes over; None where no commands run.
        isolation: What the operator asked for.
        network: Whether he lets sandboxes reach the network at all.
        limits: The bounds of each sandbox.
    """

    def __init__(
        self,
        spawner: Spawner | None,
        *,
        isolation: Isolation = "auto",
        network: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._spawner = spawner
        self._kind = None if spawner is None else choose_kind(isolation)
        self._may_give_up = isolation == "auto"
        self._network = network
        self._limits = limits or Limits()

    @property
    def kind(self) -> Kind | None:
        """What sandboxes are made of; None is files alone."""
        return self._kind

    def network(self, wanted: bool | None) -> bool:
        """Return whether a sandbox gets the network: its maker may refuse it, never demand it."""
        return self._network and wanted is not False

    async def start(self, directory_fd: int, *, network: bool) -> RunningSandbox | None:
        """Bring up the sandbox of a prepared directory; None where there are files alone.

        Raises:
            SandboxUnavailableError: E5003: it did not come up.
            SandboxTimeoutError: E5004: nor in time.
        """
        if self._spawner is None or self._kind is None:
            return None
        config = SandboxConfig(directory_fd, self._kind, network, self._limits)
        try:
            running = await self._spawner.start(config)
        except SandboxUnavailableError:
            # Not by one failure alone: a machine that is short of something is not one without.
            if not self._may_give_up or await asyncio.to_thread(doctor.isolation_works):
                raise
            self._kind = None
            return None
        self._may_give_up = False
        return running

    async def close(self) -> None:
        """End the zygote; stop the sandboxes first."""
        if self._spawner is not None:
            await self._spawner.close()
