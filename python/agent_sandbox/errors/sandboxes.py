"""Errors of sandboxes, of their commands, and of settings."""

from __future__ import annotations

from typing import Any

from agent_sandbox.errors.base import AgentSandboxError
from agent_sandbox.errors.inputs import InvalidInputError


class SandboxError(
    AgentSandboxError,
    code="E5000",
    category="file_transfer",
    http=500,
    text="The sandbox operation failed.",
    retry=True,
):
    """An operation on a sandbox itself failed."""


class SandboxNotFoundError(
    SandboxError,
    code="E5001",
    category="sandbox_not_found",
    http=404,
    text="There is no such sandbox: it never existed, has ended, or is not yours.",
):
    """The sandbox is unknown, ended or foreign; the three look the same."""


class SandboxOwnedError(
    SandboxError,
    code="E5002",
    category="permission_denied",
    http=409,
    text="Another session owns this sandbox: use one of your own, or none for the default.",
):
    """Adoption is exclusive between sessions, and another one was first."""


class SandboxUnavailableError(
    SandboxError,
    code="E5003",
    category="file_transfer",
    http=503,
    text="The sandbox service cannot be reached or gave an answer that cannot be used.",
    retry=True,
):
    """The service is down, broken, or speaks another protocol."""


class SandboxTimeoutError(
    SandboxError,
    code="E5004",
    category="timeout",
    http=504,
    text="The sandbox did not become ready in time.",
    retry=True,
):
    """Creating or finding a sandbox took longer than its own limit."""


class AuthenticationError(
    SandboxError,
    code="E5005",
    category="permission_denied",
    http=401,
    text="The sandbox service refused the credentials: check the API key or the token.",
):
    """Credentials are missing, wrong or revoked."""


class UnsupportedError(
    SandboxError,
    code="E5006",
    category="unsupported",
    http=501,
    text="The provider does not support this operation; nothing was done.",
):
    """The provider cannot do this, and nothing weaker was done instead."""


class ProcessNotFoundError(
    SandboxError,
    code="E5007",
    category="not_found",
    http=404,
    text="There is no such command in the sandbox: it has ended, or never ran.",
):
    """No command of the sandbox has this number."""


class CommandTimeoutError(
    SandboxError,
    code="E5008",
    category="timeout",
    http=504,
    text="The command did not end in time and was killed with everything in its process group.",
):
    """The time of a command was over.

    Attributes:
        result: What it had written until then (`models.CommandResult`); None where that is
            not known.
    """

    result: Any = None


class CommandFailedError(
    SandboxError,
    code="E5009",
    category="file_transfer",
    http=500,
    text="The command ended with another status than 0.",
):
    """A command that was checked did not succeed; without a check that is a result.

    Attributes:
        result: How it ended and what it had written (`models.CommandResult`).
    """

    result: Any = None


class SlowReaderError(
    SandboxError,
    code="E5010",
    category="file_transfer",
    http=429,
    text="The output was not read for too long, so its stream was ended; the command runs on.",
    retry=True,
):
    """A reader that took nothing was let go, so that the command could go on."""


class InputClosedError(
    SandboxError,
    InvalidInputError,
    code="E5011",
    category="invalid_input",
    http=400,
    text="The command takes no input: it was started without, or its input was closed.",
):
    """There is nobody who would read the input."""


class TaskNotFoundError(
    SandboxError,
    code="E5012",
    category="not_found",
    http=404,
    text="There is no such task: it never ran, ended with its sandbox, or is not yours.",
):
    """No background task has this id, for this caller; all reasons look the same."""


class TaskQuotaError(
    SandboxError,
    code="E5013",
    category="permission_denied",
    http=429,
    text="Too many retained tasks run already: stop one, or start this one without retain.",
    retry=True,
):
    """One principal may keep only so many tasks past their sessions."""


class WatchLimitError(
    SandboxError,
    code="E5014",
    category="permission_denied",
    http=429,
    text="Too much is watched already: end a watch, or watch fewer directories.",
    retry=True,
):
    """What one sandbox, or all together, may watch is used up."""


class ServiceBusyError(
    SandboxError,
    code="E5015",
    category="file_transfer",
    http=503,
    text="The sandbox service has too much to do: nothing was done; try again in a moment.",
    retry=True,
):
    """No worker became free in time, or a sandbox has as many commands as it may."""


class ConfigError(
    AgentSandboxError,
    code="E6000",
    category="invalid_input",
    http=500,
    text="The configuration is not valid: see `agent-sandbox --help` and docs/sdk.md.",
):
    """Settings that contradict each other or cannot work.

    Attributes:
        reason: Which setting, and what to do, in one of our own fixed sentences; `str(error)` ends
            with it. It repeats no value.
    """

    reason: str

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason=reason)

    def __str__(self) -> str:
        return f"{self.text} {self.reason}".rstrip()
