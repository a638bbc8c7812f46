"""The RPCs of `process.Process`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agent_sandbox.errors import (
    ArgumentError,
    CommandTimeoutError,
    InputClosedError,
    SizeLimitError,
    SlowReaderError,
    TransferError,
    UploadTimeoutError,
)
from agent_sandbox.express.processes.command import Command
from agent_sandbox.express.processes.watcher import Watcher
from agent_sandbox.express.requests import (
    body,
    check_basic_user,
    header,
    read_message,
    sandbox_of,
    whole_number,
)
from agent_sandbox.express.sandbox import Sandbox, checked_ttl
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.express.streams import Emit, ServerStream, check_protocol, seconds
from agent_sandbox.wire import connect, headers, process
from agent_sandbox.wire.e2b import Empty, ProtoMessage

MAX_LIMIT_BYTES = 2_097_152
"""Most output of one stream that is held for a caller who wants it at the end."""

_KEEPALIVE_S = 50.0
_INPUT_S = 60.0
"""How long input may wait for a command to read it, unless its caller says otherwise."""

_Unary = Callable[[Sandbox, bytes], Awaitable[ProtoMessage]]


class Processes:
    """The handlers under `/process.Process/`.

    Args:
        sandboxes: Whose commands they are.
    """

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._unary: dict[str, _Unary] = {
            "List": self._list,
            "Update": self._update,
            "SendInput": self._send_input,
            "SendSignal": self._send_signal,
            "CloseStdin": self._close_stdin,
        }

    async def call(self, request: Request) -> ASGIApp:
        """Answer one RPC; an unknown one is 404 `unimplemented`.

        Raises:
            AgentSandboxError: What the RPC failed with.
        """
        name = request.path_params["rpc"]
        streams = {"Start": self._start, "Connect": self._connect}
        if name in streams or name in self._unary or name == "StreamInput":
            request.scope["agent_sandbox.route"] = f"/{process.PROCESS_SERVICE}/{name}"
        if name in streams:
            check_protocol(request, connect.STREAM_TYPE)
            return ServerStream(
                request,
                streams[name],
                max_message_bytes=process.MAX_INPUT_BYTES,
                keeps_deadline=name != "Start",
            )
        if name == "StreamInput":
            check_protocol(request, connect.STREAM_TYPE)
            return await self._stream_input(request)
        check_protocol(request, connect.UNARY_TYPE)
        handler = self._unary.get(name)
        if name == "List" and header(request, headers.ENDED) == b"1":
            handler = self._list_all
        if handler is None:
            unknown = connect.ErrorBody(
                code=connect.ConnectCode.UNIMPLEMENTED, message="There is no such RPC."
            )
            return Response(unknown.model_dump_json(), 404, media_type=connect.UNARY_TYPE)
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        data = await body(request, process.MAX_INPUT_BYTES) or b"{}"
        async with sandbox.use(holds=False), _Deadline(request):
            answer = await handler(sandbox, data)
        return Response(answer.to_json(), media_type=connect.UNARY_TYPE)

    async def _list(self, sandbox: Sandbox, data: bytes) -> process.ListResponse:
        return process.ListResponse(
            processes=[
                process.ProcessInfo(config=one.config, pid=one.pid, tag=one.tag)
                for one in sandbox.commands
            ]
        )

    async def _list_all(self, sandbox: Sandbox, data: bytes) -> process.ListResponse:
        return process.ListResponse(
            processes=[
                process.ProcessInfo(
                    config=one.config,
                    pid=one.pid,
                    tag=one.tag,
                    retained=one.retained,
                    exit_code=one.code,
                )
                for one in (*sandbox.commands, *sandbox.commands.ended)
            ]
        )

    async def _update(self, sandbox: Sandbox, data: bytes) -> Empty:
        wanted = read_message(data, process.UpdateRequest)
        command = sandbox.commands.find(wanted.process)
        size = wanted.pty.size if wanted.pty else None
        if size is not None and not command.resize(size.rows, size.cols):
            raise ArgumentError
        return Empty()

    async def _send_input(self, sandbox: Sandbox, data: bytes) -> Empty:
        wanted = read_message(data, process.SendInputRequest)
        await _write(sandbox.commands.find(wanted.process), wanted.input)
        return Empty()

    async def _send_signal(self, sandbox: Sandbox, data: bytes) -> Empty:
        wanted = read_message(data, process.SendSignalRequest)
        command = sandbox.commands.find(wanted.process)
        if wanted.signal is process.Signal.SIGKILL:
            command.kill()
        elif wanted.signal is process.Signal.SIGTERM:
            command.terminate()
        else:
            raise ArgumentError
        return Empty()

    async def _close_stdin(self, sandbox: Sandbox, data: bytes) -> Empty:
        command = sandbox.commands.find(read_message(data, process.ConnectRequest).process)
        await command.input.finish()
        return Empty()

    async def _stream_input(self, request: Request) -> Response:
        """Take input in order from one request, for as long as it lasts."""
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        decoder = connect.EnvelopeDecoder(
            max_message_bytes=process.MAX_INPUT_BYTES, broken=ArgumentError
        )
        command: Command | None = None
        async with sandbox.use(holds=False), _Deadline(request, default_s=None):
            try:
                async for chunk in request.stream():
                    for envelope in decoder.feed(chunk):
                        if envelope.end:
                            continue
                        message = read_message(envelope.data, process.StreamInputRequest)
                        if message.start is not None:
                            command = sandbox.commands.find(message.start.process)
                        elif message.data is not None:
                            if command is None:
                                raise ArgumentError
                            await _write(command, message.data.input)
            except ClientDisconnect:
                raise TransferError from None
            decoder.finish(needs_end=False)
        if command is None:
            raise ArgumentError
        answer = connect.encode_envelope(Empty().to_json()) + connect.encode_end()
        return Response(answer, media_type=connect.STREAM_TYPE)

    async def _start(self, request: Request, data: bytes, emit: Emit) -> None:
        """Start a command and stream its output; see `headers.ON_DISCONNECT`.

        Its deadline (`connect-timeout-ms`) is the command's: then it is killed, whether or not its
        caller is still there.
        """
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        kills = header(request, headers.ON_DISCONNECT) == b"kill"
        deadline_s = seconds(request, headers.CONNECT_TIMEOUT_MS, unit_s=0.001)
        retain_s = _retained_s(request)
        wanted = read_message(data, process.StartRequest)
        limit = _limit(request)
        async with sandbox.use(holds=kills):
            command = await sandbox.commands.start(wanted)
            self._sandboxes.tally.commands += 1
            command.end_after(deadline_s)
            if retain_s is not None:
                command.retained = True
                self._sandboxes.set_ttl(sandbox, retain_s, shorten=False)
            watcher = command.watch(replay=False, limit_bytes=limit)
            try:
                await _stream(request, command, watcher, emit, retained=retain_s is not None)
            finally:
                command.unwatch(watcher)
                if kills:
                    command.kill()

    async def _connect(self, request: Request, data: bytes, emit: Emit) -> None:
        """Stream the output of a command from now on; see `headers.REPLAY`."""
        sandbox = sandbox_of(request, self._sandboxes)
        check_basic_user(request)
        replay = header(request, headers.REPLAY)
        if replay not in (None, b"1", b"only"):
            raise ArgumentError
        selector = read_message(data, process.ConnectRequest).process
        limit = _limit(request)
        async with sandbox.use(holds=False):
            command = sandbox.commands.find(selector, ended=replay is not None)
            watcher = command.watch(replay=replay is not None, limit_bytes=limit)
            if replay == b"only":
                command.unwatch(watcher)
                watcher.end()
            try:
                await _stream(request, command, watcher, emit)
            finally:
                command.unwatch(watcher)


async def _stream(
    request: Request, command: Command, watcher: Watcher, emit: Emit, *, retained: bool = False
) -> None:
    pause_s = seconds(request, headers.KEEPALIVE_PING_INTERVAL, unit_s=1) or _KEEPALIVE_S
    await emit(process.encode_event(process.StartEvent(pid=command.pid, retained=retained)))
    while True:
        try:
            async with asyncio.timeout(pause_s):
                chunk = await watcher.next()
        except TimeoutError:
            await emit(process.encode_event(None))
            continue
        if chunk is None:
            break
        await emit(process.encode_data(chunk.stream, chunk.data, chunk.omitted_bytes))
    if watcher.dropped:
        raise SlowReaderError
    if command.code is None:
        return  # it runs on; only what is held was asked for
    if command.timed_out:
        raise CommandTimeoutError
    await emit(process.encode_event(process.end_of(command.code)))


async def _write(command: Command, given: process.ProcessInput | None) -> None:
    if given is None:
        raise ArgumentError
    data = given.pty if command.input.is_terminal else given.stdin
    if data is None:
        raise (
            InputClosedError if given.stdin is not None or given.pty is not None else ArgumentError
        )
    await command.input.write(data)


def _retained_s(request: Request) -> int | None:
    retain_s = whole_number(request, headers.RETAIN)
    return None if retain_s is None else checked_ttl(retain_s)


def _limit(request: Request) -> int | None:
    limit = whole_number(request, headers.OUTPUT_LIMIT)
    if limit is not None and limit > MAX_LIMIT_BYTES:
        raise SizeLimitError(MAX_LIMIT_BYTES)
    return limit


class _Deadline:
    """Bounds the block by the caller's deadline.

    Raises:
        UploadTimeoutError: E4009: time was over; a part of the input may have been written.
    """

    def __init__(self, request: Request, default_s: float | None = _INPUT_S) -> None:
        given = seconds(request, headers.CONNECT_TIMEOUT_MS, unit_s=0.001)
        self._timeout = asyncio.timeout(given or default_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *failure: object) -> None:
        try:
            await self._timeout.__aexit__(*failure)  # type: ignore[arg-type]  # passed on as it came
        except TimeoutError:
            raise UploadTimeoutError from None
