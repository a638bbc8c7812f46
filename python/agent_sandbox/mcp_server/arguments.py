"""Arguments of the tools, validated once and strictly."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agent_sandbox.limits import MAX_FILE_BYTES, MAX_TTL_S
from agent_sandbox.mcp_server.schemas import SHA256_PATTERN
from agent_sandbox.toolkit.arguments import A, Arguments, NoArguments, parse

__all__ = ["A", "Arguments", "NoArguments", "parse"]

SandboxId = Annotated[str, Field(min_length=1, max_length=256)]
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


class WriteArguments(PathArguments):
    """Arguments of `write_file`."""

    content: str
