"""`sandbox.files`, async: reading, writing and watching a sandbox's files."""

from __future__ import annotations

import builtins

from agent_sandbox.client._calls import Target
from agent_sandbox.client._content import AsyncWritable
from agent_sandbox.client._drive_async import AsyncDriver
from agent_sandbox.client._streams import AsyncStream
from agent_sandbox.client.local_files import LocalPath
from agent_sandbox.client.operations import filesystem, transfer
from agent_sandbox.models import FileEvent, FileInfo, WriteInfo


class Files:
    """The files of one sandbox.

    Every path is checked before any request (`agent_sandbox.paths`, E2002). Every method may
    raise `AuthenticationError`, `SandboxNotFoundError`, `SandboxUnavailableError`, `TransferError`
    and the errors of `FileOperationError`. When a call raises or is cancelled its response is
    closed and the connection pool has lost nothing.

    Without `deadline_s` a transfer has no wall-clock bound (a bounded read has 120 s), but no
    single wait for the service is longer than 120 s.
    """

    def __init__(
        self, driver: AsyncDriver, target: Target, *, streaming: bool, coding: str
    ) -> None:
        self._driver, self._target = driver, target
        self._streaming, self._coding = streaming, coding

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, deadline_s: float | None = None
    ) -> bytes:
        """Return the whole content of a file.

        With a bound, bytes are counted as they arrive, uncompressed, and the byte past the bound
        closes the response; neither a declared length nor a stat is trusted, and a body whose end
        cannot be proved is refused. A bound is no snapshot: another process may change the file.
        Without a bound a gzip body is accepted, if it is whole.

        Args:
            path: Absolute path of a regular file.
            max_bytes: Most bytes to accept, at least 0; None reads any size, gzip allowed.
            deadline_s: Wall-clock seconds around connecting, sending, the head and the body; None
                is 120 for a bounded read.

        Raises:
            TypeError: `max_bytes` or `deadline_s` is no number, before any request.
            ValueError: `max_bytes` is negative or `deadline_s` not positive, before any request.
            FileSizeLimitError: E4003: the file has more bytes.
            TransferTimeoutError: E4008: time was over.
            UnsupportedError: E5006: the provider does not stream, so it cannot keep a bound.
        """
        return await self._driver.run(
            transfer.read_bytes(
                path, max_bytes, deadline_s, streaming=self._streaming, coding=self._coding
            ),
            self._target,
        )

    async def read_text(
        self, path: str, max_bytes: int | None = None, deadline_s: float | None = None
    ) -> str:
        """Return the whole content of a file as strict UTF-8; else like `read_bytes`.

        Raises:
            TextEncodingError: E2004: the content is not UTF-8.
        """
        return await self._driver.run(
            transfer.read_text(
                path, max_bytes, deadline_s, streaming=self._streaming, coding=self._coding
            ),
            self._target,
        )

    def stream(
        self, path: str, max_bytes: int | None = None, deadline_s: float | None = None
    ) -> AsyncStream[bytes]:
        """Return an iterator over a file's bytes as they arrive, in chunks of any size.

        Use it with `async with`, or read it to its end. The end is proved as in a bounded read,
        whether or not there is a bound: a stream that ends without an error was complete.
        """
        call = transfer.stream(path, max_bytes, deadline_s, streaming=self._streaming)
        return AsyncStream(self._driver, call, self._target)

    async def download(
        self,
        path: str,
        local: LocalPath,
        max_bytes: int | None = None,
        deadline_s: float | None = None,
    ) -> int:
        """Read a file into a local one and return its number of bytes.

        The local file is old or complete and new, never partial: a temporary file beside it is
        counted, then renamed; a failure leaves nothing behind. A symbolic link stays, and the file
        that it names is replaced.

        Raises:
            OSError: The local file cannot be written; before any request where a directory, FIFO,
                socket or device is in its place.
        """
        return await self._driver.run(
            transfer.download(path, local, max_bytes, deadline_s, streaming=self._streaming),
            self._target,
        )

    async def write(
        self, path: str, data: AsyncWritable, *, deadline_s: float | None = None
    ) -> WriteInfo:
        """Replace the content of a file, or make it, and return what was sent.

        It succeeds only where everything was sent and the service confirms that, with the same
        size where it says one.

        Express makes missing parents and replaces the file at once; the promise here is weaker:
        no atomic write and no resumable transfer.

        Args:
            path: Absolute path of a regular file.
            data: bytes-like, text (sent as UTF-8), a file opened for reading, or an iterator or
                async iterator of bytes. It is read once; files are read in a worker thread, a
                plain iterator on the event loop.
            deadline_s: Wall-clock seconds for the whole write.

        Raises:
            TypeError: `data` is none of these, before any request.
            TextEncodingError: E2004: text with a lone surrogate, before any request.
            TransferError: E4007: it is not certain that all of it arrived.
            UploadTimeoutError: E4009: time was over; the write may have reached the sandbox.
            StorageFullError: E4006: no room is left.
        """
        return await self._driver.run(transfer.write(path, data, deadline_s), self._target)

    async def upload(
        self, local: LocalPath, path: str, *, deadline_s: float | None = None
    ) -> WriteInfo:
        """Write the content of a local regular file; else like `write`.

        Raises:
            OSError: The local file cannot be read, before any request.
        """
        return await self._driver.run(transfer.upload(local, path, deadline_s), self._target)

    async def list(self, path: str, depth: int = 1) -> builtins.list[FileInfo]:
        """Return the entries under a directory, down to `depth` levels; 100,000 at most.

        Raises:
            SizeLimitError: E3001: the service finds the list too long.
        """
        return await self._driver.run(filesystem.list_dir(path, depth), self._target)

    async def stat(self, path: str) -> FileInfo:
        """Return what a path names; a final symbolic link is not followed."""
        return await self._driver.run(filesystem.stat(path), self._target)

    async def exists(self, path: str) -> bool:
        """Return whether a path names anything, a dangling symbolic link too."""
        return await self._driver.run(filesystem.exists(path), self._target)

    async def make_dir(self, path: str) -> bool:
        """Make a directory with its missing parents; returns False where it stood already.

        Raises:
            FileConflictError: E4005: something else has this name.
        """
        return await self._driver.run(filesystem.make_dir(path), self._target)

    async def rename(self, old_path: str, new_path: str) -> FileInfo:
        """Give an entry a new path within the sandbox, and return it."""
        return await self._driver.run(filesystem.rename(old_path, new_path), self._target)

    async def remove(self, path: str) -> None:
        """Remove an entry, a directory with everything under it."""
        await self._driver.run(filesystem.remove(path), self._target)

    def watch(self, path: str, *, recursive: bool = False) -> AsyncStream[FileEvent]:
        """Return an iterator over changes under a directory.

        Use it with `async with`: what happens after it is entered is seen. It has no end but its
        closing, the directory's or the sandbox's.
        """
        call = filesystem.watch(path, recursive=recursive)
        return AsyncStream(self._driver, call, self._target)
