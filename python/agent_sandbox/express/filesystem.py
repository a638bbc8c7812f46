"""The RPCs of `filesystem.Filesystem`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agent_sandbox.errors import FileMissingError, SizeLimitError
from agent_sandbox.express.control import read_message
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.names import absolute_path
from agent_sandbox.express.requests import body, check_basic_user, sandbox_of
from agent_sandbox.express.sandboxes import Sandbox, Sandboxes
from agent_sandbox.express.streams import Emit, ServerStream, check_protocol, seconds
from agent_sandbox.express.watch import PolledWatch, Watch, WatchReader
from agent_sandbox.wire import connect, e2b, headers

MAX_WATCHES = 64
"""Most polled watches of one sandbox."""

_KEEPALIVE_S = 50.0

_Answer = e2b.EntryResponse | e2b.ListDirResponse | e2b.Empty | e2b.Watcher | e2b.WatcherEvents
_Unary = Callable[[Sandbox, bytes], Awaitable[_Answer]]


class Filesystem:
    """The handlers under `/filesystem.Filesystem/`.

    Args:
        sandboxes: Whose files they are.
        disk: Threads for the work.
    """

    def __init__(self, sandboxes: Sandboxes, disk: Disk) -> None:
        self._sandboxes = sandboxes
        self._disk = disk
        self._unary: dict[str, _Unary] = {
            "Stat": self._stat,
            "ListDir": self._list_dir,
            "MakeDir": self._make_dir,
            "Move": self._move,
            "Remove": self._remove,
            "CreateWatcher": self._create_watcher,
            "GetWatcherEvents": self._get_watcher_events,
            "RemoveWatcher": self._remove_watcher,
        }

    async def call(self, request: Request) -> ASGIApp:
        """Answer one RPC; an unknown one is 404 `unimplemented`.

        Raises:
            AgentSandboxError: What the RPC failed with.
        """
        name = request.path_params["rpc"]
        if name == "WatchDir":
            check_protocol(request, connect.STREAM_TYPE)
            return ServerStream(request, self._watch_dir)
        check_protocol(request, connect.UNARY_TYPE)
        handler = self._unary.get(name)
        if handler is None:
            unknown = connect.ErrorBody(
                code=connect.ConnectCode.UNIMPLEMENTED, message="There is no such RPC."
            )
            return Response(unknown.model_dump_json(), 404, media_type=connect.UNARY_TYPE)
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        data = await body(request) or b"{}"
        async with sandbox.use():
            answer = await handler(sandbox, data)
        return Response(answer.to_json(), media_type=connect.UNARY_TYPE)

    async def _stat(self, sandbox: Sandbox, data: bytes) -> e2b.EntryResponse:
        path = absolute_path(read_message(data, e2b.StatRequest).path, directory=True)
        return e2b.EntryResponse(entry=await self._disk.run(lambda: sandbox.tree.stat(path)))

    async def _list_dir(self, sandbox: Sandbox, data: bytes) -> e2b.ListDirResponse:
        wanted = read_message(data, e2b.ListDirRequest)
        path = absolute_path(wanted.path, directory=True)
        entries = await self._disk.run(lambda: sandbox.tree.list(path, wanted.depth or 1))
        return e2b.ListDirResponse(entries=entries)

    async def _make_dir(self, sandbox: Sandbox, data: bytes) -> e2b.EntryResponse:
        path = absolute_path(read_message(data, e2b.MakeDirRequest).path, directory=True)
        return e2b.EntryResponse(entry=await self._disk.run(lambda: sandbox.tree.make_dir(path)))

    async def _move(self, sandbox: Sandbox, data: bytes) -> e2b.EntryResponse:
        wanted = read_message(data, e2b.MoveRequest)
        source = absolute_path(wanted.source, directory=True)
        destination = absolute_path(wanted.destination, directory=True)
        entry = await self._disk.run(lambda: sandbox.tree.move(source, destination))
        return e2b.EntryResponse(entry=entry)

    async def _remove(self, sandbox: Sandbox, data: bytes) -> e2b.Empty:
        path = absolute_path(read_message(data, e2b.RemoveRequest).path, directory=True)
        await self._disk.run(lambda: sandbox.tree.remove(path))
        return e2b.Empty()

    async def _create_watcher(self, sandbox: Sandbox, data: bytes) -> e2b.Watcher:
        if len(sandbox.watches) >= MAX_WATCHES:
            raise SizeLimitError(MAX_WATCHES)
        reader = await self._open_watch(sandbox, data)
        watcher_id = secrets.token_hex(16)
        sandbox.watches[watcher_id] = PolledWatch(reader)
        return e2b.Watcher(watcher_id=watcher_id)

    async def _get_watcher_events(self, sandbox: Sandbox, data: bytes) -> e2b.WatcherEvents:
        watch = sandbox.watches.get(read_message(data, e2b.Watcher).watcher_id)
        if watch is None:
            raise FileMissingError
        return e2b.WatcherEvents(events=watch.take())

    async def _remove_watcher(self, sandbox: Sandbox, data: bytes) -> e2b.Empty:
        watch = sandbox.watches.pop(read_message(data, e2b.Watcher).watcher_id, None)
        if watch is None:
            raise FileMissingError
        watch.close()
        return e2b.Empty()

    async def _open_watch(self, sandbox: Sandbox, data: bytes) -> WatchReader:
        wanted = read_message(data, e2b.WatchDirRequest)
        path = absolute_path(wanted.path, directory=True)
        watch = Watch(
            sandbox.tree, path, recursive=wanted.recursive, with_entry=wanted.include_entry
        )
        await self._disk.run(watch.open)
        return WatchReader(watch, self._disk)

    async def _watch_dir(self, request: Request, data: bytes, emit: Emit) -> None:
        """Emit a mark at the start, then every event, and a sign of life in between."""
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        pause_s = seconds(request, headers.KEEPALIVE_PING_INTERVAL, unit_s=1) or _KEEPALIVE_S
        async with sandbox.use(holds=False):
            with contextlib.closing(await self._open_watch(sandbox, data)) as reader:
                await emit(e2b.WatchDirResponse(start=e2b.Empty()).to_json())
                while True:
                    try:
                        async with asyncio.timeout(pause_s):
                            await reader.ready()
                    except TimeoutError:
                        await reader.check_alive()
                        await emit(e2b.WatchDirResponse(keepalive=e2b.Empty()).to_json())
                        continue
                    for event in await reader.read():
                        await emit(e2b.WatchDirResponse(filesystem=event).to_json())
