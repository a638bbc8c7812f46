"""The RPCs of `filesystem.Filesystem`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agent_sandbox.errors import FileMissingError, WatchLimitError
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.inotify import most_instances
from agent_sandbox.express.names import absolute_path
from agent_sandbox.express.requests import body, check_basic_user, read_message, sandbox_of
from agent_sandbox.express.sandbox import Sandbox
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.express.streams import Emit, LongAnswer, ServerStream, check_protocol, seconds
from agent_sandbox.express.watch import PolledWatch, Watch, WatchReader
from agent_sandbox.wire import connect, e2b, headers

MAX_WATCHES = 16
"""Most watches of one sandbox, polled and streamed."""

_WATCHES_SHARE = 0.75
"""Part of the kernel's watches for one user that Express takes; sandboxes run as the same user."""

_KEEPALIVE_S = 50.0

_Answer = e2b.EntryResponse | e2b.Empty | e2b.Watcher
_Unary = Callable[[Sandbox, bytes], Awaitable[_Answer]]
_Long = Callable[[Sandbox, bytes], Awaitable[bytes]]


class Filesystem:
    """The handlers under `/filesystem.Filesystem/`.

    Args:
        sandboxes: Whose files they are.
        disk: Threads for the work.

    Attributes:
        most_watches: How many watches all sandboxes may have together.
    """

    most_watches = max(1, int(most_instances() * _WATCHES_SHARE))

    def __init__(self, sandboxes: Sandboxes, disk: Disk) -> None:
        self._sandboxes = sandboxes
        self._disk = disk
        self._unary: dict[str, _Unary] = {
            "Stat": self._stat,
            "MakeDir": self._make_dir,
            "Move": self._move,
            "Remove": self._remove,
            "CreateWatcher": self._create_watcher,
            "RemoveWatcher": self._remove_watcher,
        }
        self._long: dict[str, _Long] = {
            "ListDir": self._list_dir,
            "GetWatcherEvents": self._get_watcher_events,
        }

    async def call(self, request: Request) -> ASGIApp:
        """Answer one RPC; an unknown one is 404 `unimplemented`.

        Raises:
            AgentSandboxError: What the RPC failed with.
        """
        name = request.path_params["rpc"]
        if name in self._unary or name in self._long or name == "WatchDir":
            request.scope["agent_sandbox.route"] = f"/{e2b.FILESYSTEM_SERVICE}/{name}"
        if name == "WatchDir":
            check_protocol(request, connect.STREAM_TYPE)
            return ServerStream(request, self._watch_dir)
        check_protocol(request, connect.UNARY_TYPE)
        if name not in self._unary and name not in self._long:
            unknown = connect.ErrorBody(
                code=connect.ConnectCode.UNIMPLEMENTED, message="There is no such RPC."
            )
            return Response(unknown.model_dump_json(), 404, media_type=connect.UNARY_TYPE)
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        data = await body(request) or b"{}"
        if name in self._long:
            return LongAnswer(sandbox, partial(self._long[name], sandbox, data))
        async with sandbox.use():
            answer = await self._unary[name](sandbox, data)
        return Response(answer.to_json(), media_type=connect.UNARY_TYPE)

    async def _stat(self, sandbox: Sandbox, data: bytes) -> e2b.EntryResponse:
        path = absolute_path(read_message(data, e2b.StatRequest).path, directory=True)
        return await self._entry(sandbox, lambda: sandbox.tree.stat(path))

    async def _entry(
        self, sandbox: Sandbox, work: Callable[[], e2b.EntryInfo]
    ) -> e2b.EntryResponse:
        return e2b.EntryResponse(entry=await self._disk.run(work, slots=sandbox.disk_slots))

    async def _list_dir(self, sandbox: Sandbox, data: bytes) -> bytes:
        wanted = read_message(data, e2b.ListDirRequest)
        path = absolute_path(wanted.path, directory=True)

        def work() -> bytes:
            return _repeated("entries", sandbox.tree.list(path, wanted.depth or 1))

        return await self._disk.run(work, slots=sandbox.disk_slots)

    async def _make_dir(self, sandbox: Sandbox, data: bytes) -> e2b.EntryResponse:
        path = absolute_path(read_message(data, e2b.MakeDirRequest).path, directory=True)
        return await self._entry(sandbox, lambda: sandbox.tree.make_dir(path))

    async def _move(self, sandbox: Sandbox, data: bytes) -> e2b.EntryResponse:
        wanted = read_message(data, e2b.MoveRequest)
        source = absolute_path(wanted.source, directory=True)
        destination = absolute_path(wanted.destination, directory=True)
        return await self._entry(sandbox, lambda: sandbox.tree.move(source, destination))

    async def _remove(self, sandbox: Sandbox, data: bytes) -> e2b.Empty:
        path = absolute_path(read_message(data, e2b.RemoveRequest).path, directory=True)
        await self._disk.run(lambda: sandbox.tree.remove(path), slots=sandbox.disk_slots)
        return e2b.Empty()

    async def _create_watcher(self, sandbox: Sandbox, data: bytes) -> e2b.Watcher:
        with self._watch_counted(sandbox):
            reader = await self._open_watch(sandbox, data)
            watcher_id = secrets.token_hex(16)
            sandbox.watches[watcher_id] = PolledWatch(reader, sandbox.pending)
        return e2b.Watcher(watcher_id=watcher_id)

    async def _get_watcher_events(self, sandbox: Sandbox, data: bytes) -> bytes:
        watch = sandbox.watches.get(read_message(data, e2b.Watcher).watcher_id)
        if watch is None:
            raise FileMissingError
        return _repeated("events", watch.take())

    async def _remove_watcher(self, sandbox: Sandbox, data: bytes) -> e2b.Empty:
        watch = sandbox.watches.pop(read_message(data, e2b.Watcher).watcher_id, None)
        if watch is None:
            raise FileMissingError
        watch.close()
        return e2b.Empty()

    @contextlib.contextmanager
    def _watch_counted(self, sandbox: Sandbox) -> Iterator[None]:
        """Count a watch from before it is opened: many may be opened at once."""
        everywhere = sum(len(one.watches) + one.open_watches for one in self._sandboxes)
        own = len(sandbox.watches) + sandbox.open_watches
        if own >= MAX_WATCHES or everywhere >= self.most_watches:
            raise WatchLimitError
        sandbox.open_watches += 1
        try:
            yield
        finally:
            sandbox.open_watches -= 1

    async def _open_watch(self, sandbox: Sandbox, data: bytes) -> WatchReader:
        wanted = read_message(data, e2b.WatchDirRequest)
        path = absolute_path(wanted.path, directory=True)
        watch = Watch(
            sandbox.tree, path, recursive=wanted.recursive, with_entry=wanted.include_entry
        )
        slots = sandbox.disk_slots
        await self._disk.run(watch.open, undo=lambda _: watch.close(), slots=slots)
        return WatchReader(watch, self._disk, slots)

    async def _watch_dir(self, request: Request, data: bytes, emit: Emit) -> None:
        """Emit a mark at the start, then every event, and a sign of life in between."""
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        pause_s = seconds(request, headers.KEEPALIVE_PING_INTERVAL, unit_s=1) or _KEEPALIVE_S
        async with sandbox.use(holds=False):
            with (
                self._watch_counted(sandbox),
                contextlib.closing(await self._open_watch(sandbox, data)) as reader,
            ):
                await emit(e2b.WatchDirResponse(start=e2b.Empty()).to_json())
                while True:
                    try:
                        async with asyncio.timeout(pause_s):
                            await reader.ready()
                    except TimeoutError:
                        await reader.check_alive()
                        await emit(e2b.WatchDirResponse(keepalive=e2b.Empty()).to_json())
                        continue
                    events = await reader.read()
                    sandbox.pending.add(events)
                    try:
                        for event in events:
                            await emit(b'{"filesystem":%b}' % event)
                    finally:
                        sandbox.pending.remove(events)


def _repeated(name: str, messages: list[bytes]) -> bytes:
    """Return a message whose one field repeats messages, as protobuf JSON has it."""
    if not messages:
        return b"{}"
    return b'{"%b":[%b]}' % (name.encode(), b",".join(messages))
