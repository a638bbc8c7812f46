"""Arguments of the tools, validated once and strictly."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from agent_sandbox.limits import (
    MAX_COMMAND_CHARS,
    MAX_COMMAND_S,
    MAX_FILE_BYTES,
    MAX_OFFSET,
    MAX_TTL_S,
)
from agent_sandbox.mcp_server.schemas import SHA256_PATTERN
from agent_sandbox.toolkit.arguments import A, Arguments, NoArguments, parse

__all__ = ["A", "Arguments", "NoArguments", "parse"]

SandboxId = Annotated[str, Field(min_length=1, max_length=256)]
TaskId = Annotated[str, Field(min_length=1, max_length=256)]


def _passable(command: str) -> str:
    if "\0" in command:  # no program's argument can hold it
        raise ValueError
    command.encode()  # nor a lone surrogate: its error is a ValueError
    return command


Command = Annotated[
    str, Field(min_length=1, max_length=MAX_COMMAND_CHARS), AfterValidator(_passable)
]
TtlSeconds = Annotated[int, Field(ge=1, le=MAX_TTL_S)]


class CreateSandboxArguments(Arguments):
    """Arguments of `create_sandbox`."""

    ttl_seconds: TtlSeconds | None = None


class SandboxArguments(Arguments):
    """Arguments of tools that look at or end one sandbox."""

    sandbox_id: SandboxId


class SetTtlArguments(SandboxArguments):
    """Arguments of `set_sandbox_ttl`."""

    ttl_seconds: TtlSeconds


class PathArguments(Arguments):
    """Arguments of tools that take a path; `agent_sandbox.paths` decides about its form."""

    path: str
    sandbox_id: SandboxId | None = None


class UploadArguments(PathArguments):
    """Arguments of `upload_file`; the length of the text is the byte core's to judge."""

    content_base64: str
    size_bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)] | None = None
    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)] | None = None


class RunArguments(Arguments):
    """Arguments of `run_command`."""

    command: Command
    cwd: str | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_COMMAND_S)] | None = None
    sandbox_id: SandboxId | None = None


class StartArguments(Arguments):
    """Arguments of `start_background_task`."""

    command: Command
    cwd: str | None = None
    retain: bool | None = None
    retain_seconds: TtlSeconds | None = None
    sandbox_id: SandboxId | None = None

    @model_validator(mode="after")
    def _retain_seconds_go_with_retain(self) -> StartArguments:
        if self.retain_seconds is not None and not self.retain:
            raise ValueError
        return self


class TaskArguments(Arguments):
    """Arguments of tools for one task."""

    task_id: TaskId


class ReadTaskArguments(TaskArguments):
    """Arguments of `get_background_task`."""

    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = None


class WriteArguments(PathArguments):
    """Arguments of `write_file`."""

    content: str
