"""`sandbox.files`, blocking: the twin of `agent_sandbox.client.files`."""

from __future__ import annotations

import builtins

from agent_sandbox.client._calls import Target
from agent_sandbox.client._content import Writable
from agent_sandbox.client._drive_blocking import BlockingDriver
from agent_sandbox.client._streams import Stream
from agent_sandbox.client.local_files import LocalPath
from agent_sandbox.client.operations import filesystem, transfer
from agent_sandbox.models import FileEvent, FileInfo, WriteInfo


class Files:
    """The files of one sandbox: what `agent_sandbox.client.files.Files` promises, blocking.

    Safe for any number of threads.
    """

    def __init__(
        self, driver: BlockingDriver, target: Target, *, streaming: bool, coding: str
    ) -> None:
        self._driver, self._target = driver, target
        self._streaming, self._coding = streaming, coding

    def read_bytes(
        self, path: str, max_bytes: int | None = None, deadline_s: float | None = None
    ) -> bytes:
        """Blocking twin of `Files.read_bytes`."""
        return self._driver.run(
            transfer.read_bytes(
                path, max_bytes, deadline_s, streaming=self._streaming, coding=self._coding
            ),
            self._target,
        )

    def read_text(
        self, path: str, max_bytes: int | None = None, deadline_s: float | None = None
    ) -> str:
        """Blocking twin of `Files.read_text`."""
        return self._driver.run(
            transfer.read_text(
                path, max_bytes, deadline_s, streaming=self._streaming, coding=self._coding
            ),
            self._target,
        )

    def stream(
        self, path: str, max_bytes: int | None = None, deadline_s: float | None = None
    ) -> Stream[bytes]:
        """Blocking twin of `Files.stream`."""
        call = transfer.stream(path, max_bytes, deadline_s, streaming=self._streaming)
        return Stream(self._driver, call, self._target)

    def download(
        self,
        path: str,
        local: LocalPath,
        max_bytes: int | None = None,
        deadline_s: float | None = None,
    ) -> int:
        """Blocking twin of `Files.download`."""
        return self._driver.run(
            transfer.download(path, local, max_bytes, deadline_s, streaming=self._streaming),
            self._target,
        )

    def write(self, path: str, data: Writable, *, deadline_s: float | None = None) -> WriteInfo:
        """Blocking twin of `Files.write`."""
        return self._driver.run(transfer.write(path, data, deadline_s), self._target)

    def upload(self, local: LocalPath, path: str, *, deadline_s: float | None = None) -> WriteInfo:
        """Blocking twin of `Files.upload`."""
        return self._driver.run(transfer.upload(local, path, deadline_s), self._target)

    def list(self, path: str, depth: int = 1) -> builtins.list[FileInfo]:
        """Blocking twin of `Files.list`."""
        return self._driver.run(filesystem.list_dir(path, depth), self._target)

    def stat(self, path: str) -> FileInfo:
        """Blocking twin of `Files.stat`."""
        return self._driver.run(filesystem.stat(path), self._target)

    def exists(self, path: str) -> bool:
        """Blocking twin of `Files.exists`."""
        return self._driver.run(filesystem.exists(path), self._target)

    def make_dir(self, path: str) -> bool:
        """Blocking twin of `Files.make_dir`."""
        return self._driver.run(filesystem.make_dir(path), self._target)

    def rename(self, old_path: str, new_path: str) -> FileInfo:
        """Blocking twin of `Files.rename`."""
        return self._driver.run(filesystem.rename(old_path, new_path), self._target)

    def remove(self, path: str) -> None:
        """Blocking twin of `Files.remove`."""
        self._driver.run(filesystem.remove(path), self._target)

    def watch(self, path: str, *, recursive: bool = False) -> Stream[FileEvent]:
        """Blocking twin of `Files.watch`."""
        call = filesystem.watch(path, recursive=recursive)
        return Stream(self._driver, call, self._target)
