"""What Express says about a sandbox before it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_sandbox.express.isolation.limits import Limits

Kind = Literal["bubblewrap", "none"]


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What one running sandbox is made of.

    Attributes:
        directory_fd: Its `/`, owned by the service's user, made by `prepare_directory`; stays the
            caller's, who may close it once the sandbox is up. The ancestors need not be
            searchable. Its path in its file system shows in the sandbox's /proc/self/mountinfo:
            choose one that says nothing.
        kind: `bubblewrap`, or `none` for no isolation at all (the operator's explicit wish).
        network: True shares the host's network, loopback services and abstract sockets included.
        limits: Its bounds.
    """

    directory_fd: int
    kind: Kind = "bubblewrap"
    network: bool = False
    limits: Limits = field(default_factory=Limits)
