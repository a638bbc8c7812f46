"""The sandboxes of this server as the tools of upload sessions use them, for one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from agent_sandbox import Sandbox
from agent_sandbox.bytestream import Sha256
from agent_sandbox.errors import (
    AgentSandboxError,
    FileKindError,
    FileMissingError,
    FileSizeLimitError,
    PathError,
    SandboxNotFoundError,
    TransferError,
    TransferTimeoutError,
    UploadOutcomeUnknownError,
    UploadTimeoutError,
)
from agent_sandbox.mcp_server.tool import Call, next_step
from agent_sandbox.mcp_server.transfers.uploads import Uploads
from agent_sandbox.models import WriteInfo
from agent_sandbox.uploads.models import PlaceTarget, StoredUpload
from agent_sandbox.uploads.states import State

T = TypeVar("T")

_NOT_THERE = (FileMissingError, FileKindError, FileSizeLimitError, SandboxNotFoundError)


class CallFiles:
    """`SandboxFiles` with the rules of ownership of this server."""

    def __init__(self, call: Call, uploads: Uploads) -> None:
        self._call = call
        self._uploads = uploads

    @property
    def sandbox_id(self) -> str | None:
        """The sandbox that the call has used."""
        return self._call.use.sandbox_id

    async def place(
        self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
    ) -> Mapping[str, Any]:
        """Write a stored file; a write that broke may have arrived, and is looked at next time."""

        def begun(sandbox: Sandbox) -> None:
            self._uploads.note_attempt(upload.upload_id, sandbox.sandbox_id)

        try:
            result = await self._write(target, data, begun)
        except TransferError:
            raise UploadOutcomeUnknownError(str(State.PLACING)) from None
        self._uploads.placing_in.pop(upload.upload_id, None)
        return result

    async def inspect(self, upload: StoredUpload, target: PlaceTarget) -> Mapping[str, Any] | None:
        """Look whether the file is there, by size and digest."""
        sandbox_id = target.sandbox_id or self._uploads.placing_in.get(upload.upload_id)
        if sandbox_id is None:
            return None  # a default sandbox of a server that has ended: it is gone, too
        digest = Sha256()
        size = 0

        async def look(sandbox: Sandbox) -> None:
            nonlocal size
            stream = sandbox.files.stream(_path(target), max_bytes=upload.size_bytes)
            async with stream as chunks:
                async for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)

        try:
            await self._call.registry.use(self._call.use, sandbox_id, look, TransferTimeoutError)
        except _NOT_THERE:
            return None
        if (size, digest.hexdigest()) != (upload.size_bytes, upload.sha256):
            return None
        return self._fields(bytes_written=size, sha256=upload.sha256)

    async def write(self, target: PlaceTarget, data: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """Replace a file with all of `data`."""
        return await self._write(target, data, lambda _sandbox: None)

    async def read(
        self,
        target: PlaceTarget,
        max_bytes: int,
        consume: Callable[[AsyncIterator[bytes]], Awaitable[T]],
    ) -> tuple[T, Mapping[str, Any]]:
        """Open a file for `consume`."""

        async def read(sandbox: Sandbox) -> T:
            async with sandbox.files.stream(_path(target), max_bytes=max_bytes) as chunks:
                return await consume(chunks)

        call = self._call
        value = await call.registry.use(call.use, target.sandbox_id, read, TransferTimeoutError)
        return value, self._fields()

    async def _write(
        self,
        target: PlaceTarget,
        data: AsyncIterator[bytes],
        begun: Callable[[Sandbox], None],
    ) -> Mapping[str, Any]:
        source = _Source(data)

        async def write(sandbox: Sandbox) -> WriteInfo:
            if source.begun:  # a default that ended meanwhile was replaced; the data is used up
                raise SandboxNotFoundError
            await sandbox.info()  # is it still there? Else another is made, with all of the data
            begun(sandbox)
            return await sandbox.files.write(_path(target), source)

        call = self._call
        try:
            info = await call.registry.use(call.use, target.sandbox_id, write, UploadTimeoutError)
        except AgentSandboxError:
            if source.error is not None:
                raise source.error from None
            raise
        return self._fields(bytes_written=info.bytes_written, sha256=info.sha256)

    def _fields(self, **fields: Any) -> Mapping[str, Any]:
        found = self._call.file_fields(**fields) | next_step(self._call.use)
        del found["success"]
        return found


class _Source:
    """Data on its way, and whether and how it failed: a client turns that into its own error."""

    def __init__(self, data: AsyncIterator[bytes]) -> None:
        self._data = data
        self.begun = False
        self.error: AgentSandboxError | None = None

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> bytes:
        self.begun = True
        try:
            return await anext(self._data)
        except AgentSandboxError as error:
            self.error = error
            raise


def _path(target: PlaceTarget) -> str:
    if target.path is None:
        raise PathError
    return target.path
