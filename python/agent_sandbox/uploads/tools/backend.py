"""What a server gives to the tools of upload sessions, asked for anew at each call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mcp.server import mcpserver

from agent_sandbox.uploads.fetch import FetchPolicy
from agent_sandbox.uploads.models import (
    Placer,
    PlaceTarget,
    Principal,
    UploadsConfig,
)
from agent_sandbox.uploads.service import UploadService

T = TypeVar("T")

Context = mcpserver.Context[Any, Any]
"""The SDK's context of a call, of a server with any lifespan."""


class SandboxFiles(Placer, Protocol):
    """Sandboxes as one call sees them: where files are placed, fetched to and downloaded from.

    A result is a small JSON object; `bytes_written`, `sha256`, `sandbox_id`, `sandbox_created` and
    `next_step` in it become fields of the tool's result.
    """

    @property
    def sandbox_id(self) -> str | None:
        """The sandbox that the call has used, as soon as there is one; named in failures, too."""
        ...

    async def write(self, target: PlaceTarget, data: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """Replace a file with all of `data`; if that raises, nothing may be written."""
        ...

    async def read(
        self,
        target: PlaceTarget,
        max_bytes: int,
        consume: Callable[[AsyncIterator[bytes]], Awaitable[T]],
    ) -> tuple[T, Mapping[str, Any]]:
        """Open a file, at most `max_bytes` long, for `consume`; return its value and the result.

        The stream ends only where the whole file was read.
        """
        ...


def default_policy(config: UploadsConfig) -> FetchPolicy:
    """Return the policy of `fetch_url`: files of the size that may be uploaded, in one minute."""
    return FetchPolicy(max_bytes=config.max_size_bytes)


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the tools find what they work with.

    Either `placer` or `files` may be given: with `files` the tools place, fetch and download by
    path; with `placer` the one use of a file is what the embedder does with it; with neither the
    tools only receive, and the embedder uses `UploadService.place` in a tool of its own.

    Attributes:
        service: Returns the running service.
        principal: Says who a call is made for.
        placer: Returns the embedder's own use of a file.
        files: Returns the sandboxes.
        fetch_policy: Makes the policy of `fetch_url`.
        use_tool: Name of the tool that uses a file; the guidance names it.
        use_description: Its description, instead of the one that places by path.
    """

    service: Callable[[Context], Awaitable[UploadService]]
    principal: Callable[[Context], Principal]
    placer: Callable[[Context], Placer] | None = None
    files: Callable[[Context], SandboxFiles] | None = None
    fetch_policy: Callable[[UploadsConfig], FetchPolicy] = default_policy
    use_tool: str = "place_upload"
    use_description: str | None = None

    def named(self, text: str) -> str:
        """Return guidance with the name that the using tool has here."""
        return text.replace("place_upload", self.use_tool)


@dataclass(eq=False, slots=True)
class Call:
    """One call of a tool.

    Attributes:
        backend: What the server gave.
        context: The SDK's context.
        service: The running service.
        principal: Who it is made for.
        files: The sandboxes, where there are any.
    """

    backend: Backend
    context: Context
    service: UploadService
    principal: Principal
    files: SandboxFiles | None

    @classmethod
    async def begin(cls, backend: Backend, context: Context) -> Call:
        """Collect what a call works with."""
        principal = backend.principal(context)
        service = await backend.service(context)
        files = None if backend.files is None else backend.files(context)
        return cls(backend, context, service, principal, files)

    def sandboxes(self) -> SandboxFiles:
        """Return the sandboxes; for tools that are offered only where there are some."""
        assert self.files is not None  # noqa: S101 - see `backend_tools`
        return self.files

    def placer(self) -> Placer:
        """Return what uses a file; for the tool that is offered only where there is a use."""
        make = self.backend.placer
        return make(self.context) if make is not None else self.sandboxes()
