"""Watching a directory of a sandbox: from inotify's events to E2B's.

A watch holds descriptors, never path strings: a path watcher would follow a symbolic link out of
the sandbox. The temporary names of our own writes are translated: a watcher sees `create` and
`write` of the real name.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import stat
from collections.abc import Iterator

from agent_sandbox.errors import (
    AgentSandboxError,
    FileMissingError,
    TransferError,
    WatchLimitError,
)
from agent_sandbox.express import inotify
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.failures import os_errors
from agent_sandbox.express.names import readable, temporary_purpose
from agent_sandbox.express.openat2 import open_below
from agent_sandbox.express.tree import Tree
from agent_sandbox.wire.e2b import EventType, FilesystemEvent

MAX_DIRECTORIES = 8_192
"""Most directories of one recursive watch."""

_MAX_PLACING = 1_024

MAX_PENDING_EVENTS = 10_000
"""Most events that a polled watch keeps for its client."""

MAX_PENDING_BYTES = 16_777_216
"""Most bytes of events, as JSON, that wait for the clients of one sandbox."""

_WITH_ENTRY = frozenset({EventType.CREATE, EventType.WRITE, EventType.CHMOD})


class Watch:
    """One directory under watch, on request with all directories below it.

    `open`, `read` and `close` block on the disk and never run at the same time.

    Args:
        tree: The sandbox's files.
        path: Canonical path of the directory.
        recursive: Whether directories below are watched, also those that come later.
        with_entry: Whether events carry the entry that they are about.
    """

    def __init__(self, tree: Tree, path: str, *, recursive: bool, with_entry: bool) -> None:
        self._tree = tree
        self._path = path
        self._recursive = recursive
        self._with_entry = with_entry
        self._top: Descriptor | None = None
        self._inotify: Descriptor | None = None
        self._directories: dict[int, str] = {}  # watch -> path below the top, with its slash
        self._announced: set[str] = set()  # told from a scan; the kernel may tell it again
        self._placing: dict[int, str] = {}  # cookie -> purpose of a temporary file on its way

    @property
    def fd(self) -> int:
        """The descriptor that becomes readable when something happened."""
        return self._inotify.fd if self._inotify else -1

    def open(self) -> None:
        """Begin to watch.

        Raises:
            FileKindError: E4004, where the path is no directory.
            WatchLimitError: E5014, too many watches, or directories below this one.
            FileOperationError: E4001 missing, E4002 not permitted, and its other kinds.
        """
        with os_errors(), contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._top = self._tree.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            self._inotify = Descriptor(inotify.open_inotify())
            collections.deque(self._add(""), maxlen=0)  # what is there already is no event
            on_failure.pop_all()

    def close(self) -> None:
        """Stop watching."""
        for descriptor in (self._inotify, self._top):
            if descriptor:
                descriptor.close()

    def read(self) -> list[bytes]:
        """Return what happened since the last call, in order, as JSON; empty if nothing did.

        Raises:
            FileMissingError: E4001, the watched directory itself is gone.
            TransferError: E4007, events were lost because nobody read them, or are too many.
            WatchLimitError: E5014, there are too many directories to watch.
        """
        with os_errors():
            batch = inotify.read_events(self.fd)
            doomed = {
                raw.cookie
                for raw in batch
                if raw.mask & inotify.IN_MOVED_TO and temporary_purpose(raw.name) == "x"
            }
            events = []
            size = 0
            for raw in batch:
                for event in self._translate(raw, doomed):
                    events.append(event.to_json())
                    size += len(events[-1])
                    if size > MAX_PENDING_BYTES:
                        raise TransferError
            return events

    def check_alive(self) -> None:
        """Make sure that the watched directory still stands.

        The kernel does not tell: it reports the end of a directory only when its last descriptor
        is closed, and the watch holds one.

        Raises:
            FileMissingError: E4001.
        """
        top_fd = self._top.fd if self._top else -1
        name = os.path.basename(os.readlink(f"/proc/self/fd/{top_fd}"))
        if os.fstat(top_fd).st_nlink == 0 or temporary_purpose(name) == "x":
            raise FileMissingError

    def _translate(self, raw: inotify.RawEvent, doomed: set[int]) -> Iterator[FilesystemEvent]:
        if raw.mask & inotify.IN_Q_OVERFLOW:
            raise TransferError
        directory = self._directories.get(raw.watch)
        if directory is None:
            return
        if raw.mask & inotify.IN_IGNORED:
            del self._directories[raw.watch]
            return
        if raw.mask & inotify.IN_MOVE_SELF:
            if not directory:
                self.check_alive()
            return
        if not raw.name:
            return
        name = directory + raw.name
        purpose = temporary_purpose(raw.name)
        if raw.mask & inotify.IN_MOVED_FROM:
            self._announced.discard(name)
            if raw.mask & inotify.IN_ISDIR:
                self._forget(name + "/")
            if purpose:
                # Its other half comes later, not always next: renames in different directories mix.
                if len(self._placing) >= _MAX_PLACING:
                    self._placing.clear()  # halves that never came: moved out under this name
                self._placing[raw.cookie] = purpose
            else:
                removed = raw.cookie in doomed
                yield self._event(EventType.REMOVE if removed else EventType.RENAME, name)
        elif raw.mask & inotify.IN_MOVED_TO:
            if purpose is None:
                yield from self._arrived(raw, name)
        elif purpose:
            return
        elif raw.mask & inotify.IN_CREATE:
            if name not in self._announced:
                yield self._event(EventType.CREATE, name)
            if raw.mask & inotify.IN_ISDIR:
                yield from self._appeared(name)
        elif raw.mask & inotify.IN_DELETE:
            self._announced.discard(name)
            yield self._event(EventType.REMOVE, name)
        elif raw.mask & inotify.IN_MODIFY:
            yield self._event(EventType.WRITE, name)
        elif raw.mask & inotify.IN_ATTRIB:
            yield self._event(EventType.CHMOD, name)

    def _arrived(self, raw: inotify.RawEvent, name: str) -> Iterator[FilesystemEvent]:
        came_from = self._placing.pop(raw.cookie, None)
        told = name in self._announced
        if came_from != "r" and not told:
            yield self._event(EventType.CREATE, name)
        if came_from == "r" or (came_from == "n" and not told):
            yield self._event(EventType.WRITE, name)
        if raw.mask & inotify.IN_ISDIR:
            yield from self._appeared(name)

    def _appeared(self, name: str) -> Iterator[FilesystemEvent]:
        """Watch a directory that came, and tell what was put into it before the watch stood."""
        if not self._recursive:
            return
        for found, mode, size in self._add(name + "/"):
            if found in self._announced:
                continue
            self._announced.add(found)
            yield self._event(EventType.CREATE, found)
            if stat.S_ISREG(mode) and size:
                yield self._event(EventType.WRITE, found)

    def _add(self, directory: str) -> Iterator[tuple[str, int, int]]:
        """Watch a directory and, if recursive, those below; yield name, mode, size of the rest."""
        top_fd = self._top.fd if self._top else -1
        pending = [directory]
        while pending:
            current = pending.pop()
            try:
                fd = open_below(top_fd, current or ".", os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                if not current:
                    raise
                continue  # gone again, or not ours to read
            with Descriptor(fd):
                if len(self._directories) >= MAX_DIRECTORIES:
                    raise WatchLimitError
                self._directories[inotify.add_directory(self.fd, fd)] = current
                if not self._recursive:
                    return
                try:
                    entries = _listing(fd)
                except PermissionError:
                    if not current:
                        raise
                    continue
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{current}{entry.name}/")
                    yield f"{current}{entry.name}", status.st_mode, status.st_size

    def _forget(self, directory: str) -> None:
        gone = [watch for watch, path in self._directories.items() if path.startswith(directory)]
        for watch in gone:
            del self._directories[watch]
            inotify.remove_watch(self.fd, watch)
        self._announced = {name for name in self._announced if not name.startswith(directory)}

    def _event(self, kind: EventType, name: str) -> FilesystemEvent:
        entry = None
        if self._with_entry and kind in _WITH_ENTRY and self._top:
            entry = self._tree.entry_below(self._top.fd, name, self._path)
        return FilesystemEvent(name=readable(name), type=kind, entry=entry)


def _listing(fd: int) -> list[os.DirEntry[str]]:
    found = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if temporary_purpose(entry.name) is None:
                with contextlib.suppress(FileNotFoundError):
                    entry.stat(follow_symlinks=False)  # cached: `fd` closes before it is used
                    found.append(entry)
    return found


class WatchReader:
    """Reads a watch for the event loop: waits without a thread, works in one.

    Args:
        watch: An open watch, which the reader closes.
        disk: Threads for reading.
        slots: The sandbox's share of them.
    """

    def __init__(self, watch: Watch, disk: Disk, slots: asyncio.Semaphore) -> None:
        self._watch = watch
        self._disk = disk
        self._slots = slots
        self._readable = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def ready(self) -> None:
        """Wait until `read` has something to read; cancellable."""
        self._readable.clear()
        self._loop.add_reader(self._watch.fd, self._readable.set)
        try:
            await self._readable.wait()
        finally:
            self._loop.remove_reader(self._watch.fd)

    async def check_alive(self) -> None:
        """Make sure that the watched directory still stands.

        Raises:
            FileMissingError: E4001.
        """
        await self._disk.run(self._watch.check_alive, slots=self._slots)

    async def read(self) -> list[bytes]:
        """Return what happened, as JSON; empty where only our own temporary files moved.

        Raises:
            FileOperationError: As `Watch.read`.
        """
        return await self._disk.run(self._watch.read, slots=self._slots)

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()


class Pending:
    """Counts what waits in memory for the clients of one sandbox."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, events: list[bytes]) -> None:
        """Count events that begin to wait.

        Raises:
            TransferError: E4007, they are too many, and must be dropped.
        """
        size = sum(map(len, events))
        if self._bytes + size > MAX_PENDING_BYTES:
            raise TransferError
        self._bytes += size

    def remove(self, events: list[bytes]) -> None:
        """Take events out that were added, when they wait no more."""
        self._bytes -= sum(map(len, events))


class PolledWatch:
    """A watch whose events wait for a client that asks for them.

    Args:
        reader: Where the events come from; closed with this watch.
        pending: Counts the events of the sandbox.
    """

    def __init__(self, reader: WatchReader, pending: Pending) -> None:
        self._reader = reader
        self._pending = pending
        self._events: list[bytes] = []
        self._failure: AgentSandboxError | None = None
        self._task = asyncio.get_running_loop().create_task(self._collect())
        self._task.add_done_callback(lambda _: reader.close())

    async def _collect(self) -> None:
        try:
            while len(self._events) <= MAX_PENDING_EVENTS:
                await self._reader.ready()
                events = await self._reader.read()
                self._pending.add(events)
                self._events += events
            self._failure = TransferError()
        except AgentSandboxError as error:
            self._failure = error

    def take(self) -> list[bytes]:
        """Return the events since the last call, as JSON.

        Raises:
            AgentSandboxError: The watch has failed; said once the events before that were taken.
        """
        if self._failure and not self._events:
            raise self._failure
        events, self._events = self._events, []
        self._pending.remove(events)
        return events

    def close(self) -> None:
        """Stop watching, and forget what waits."""
        self._task.cancel()
        self._pending.remove(self._events)
        self._events = []
