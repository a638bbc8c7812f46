"""Running commands: the `process.Process` RPCs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from agent_sandbox.client._answers import (
    READ,
    STREAM_END,
    Failures,
    named_error,
    require_identity,
)
from agent_sandbox.client._calls import Call, Head, Operation
from agent_sandbox.client.operations._checks import checked_seconds, checked_ttl
from agent_sandbox.client.operations._rpc import check_end, each_envelope, rpc_headers, unary
from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    CommandFailedError,
    CommandTimeoutError,
    ProcessNotFoundError,
    TransferError,
    TransferTimeoutError,
    UploadTimeoutError,
)
from agent_sandbox.models import CommandInfo, CommandOutput, CommandResult
from agent_sandbox.output import OutputBuffer
from agent_sandbox.paths import canonical_path
from agent_sandbox.wire import connect, headers, process
from agent_sandbox.wire.e2b import Empty

COMMAND_TIMEOUT_S = 60.0
"""How long a command may run, unless its caller says otherwise."""

OUTPUT_BYTES = 2_097_152
"""Output of each stream that a result holds: the first and the last MiB."""

_SLACK_S = 10.0
"""How much later than the service we give up: it kills the command, and says what it wrote."""

Argv = str | Sequence[str]
"""A line for `bash -l -c`, or a program with its arguments."""

Which = int | str
"""A command: its number, or its tag."""

Event = CommandOutput | int
"""Output, or at the end the status."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A command, checked."""

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]

    @classmethod
    def of(cls, command: Argv, cwd: str | None, env: Mapping[str, str] | None) -> Wanted:
        """Check a command.

        Raises:
            ArgumentError: E2001: no program, NUL, or something that is no text.
            PathError: E2002: `cwd`.
        """
        line = isinstance(command, str)
        argv = ("/bin/bash", "-l", "-c", command) if isinstance(command, str) else tuple(command)
        variables = dict(env or {})
        texts = [*argv, *variables, *variables.values()]
        if not argv or not argv[0] or (line and not command):
            raise ArgumentError
        if any(not isinstance(text, str) or "\0" in text for text in texts):
            raise ArgumentError
        if any(not name or "=" in name for name in variables):
            raise ArgumentError
        where = None if cwd is None else canonical_path(cwd, directory=True)
        return cls(argv, where, variables)

    def message(self, *, stdin: bool, terminal: tuple[int, int] | None, tag: str | None) -> bytes:
        """Return the body of Start."""
        size = None
        if terminal is not None:
            rows, columns = terminal
            size = process.Terminal(size=process.TerminalSize(rows=rows, cols=columns))
        config = process.ProcessConfig(
            cmd=self.argv[0], args=list(self.argv[1:]), envs=self.env, cwd=self.cwd
        )
        request = process.StartRequest(process=config, pty=size, tag=tag, stdin=stdin)
        # `stdin: false` must stand there: absent means true.
        return request.to_json()


def run(
    command: Argv,
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout_s: float | None,
    *,
    live: bool,
    max_output_bytes: int,
) -> Call[Events]:
    """Return the call that runs a command in the foreground."""
    wanted = Wanted.of(command, cwd, env)
    _check_output_bytes(max_output_bytes)
    more = {headers.ON_DISCONNECT: "kill"}
    if not live:
        more[headers.OUTPUT_LIMIT] = str(max_output_bytes)
    body = wanted.message(stdin=False, terminal=None, tag=None)
    return _stream("Start", body, more, checked_seconds("timeout_s", timeout_s))


def start(
    command: Argv,
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout_s: float | None,
    *,
    stdin: bool,
    terminal: tuple[int, int] | None,
    tag: str | None,
    retain_s: int | None,
) -> Call[Events]:
    """Return the call that starts a command; it goes on when the stream is closed."""
    wanted = Wanted.of(command, cwd, env)
    body = wanted.message(stdin=stdin, terminal=terminal, tag=tag)
    # The limit keeps the service from queueing output for a stream that nobody reads on.
    more = {headers.OUTPUT_LIMIT: "0"}
    if retain_s is not None:
        more[headers.RETAIN] = str(checked_ttl(retain_s))
    return _stream("Start", body, more, checked_seconds("timeout_s", timeout_s))


def attach(pid: Which, *, live: bool) -> Call[Events]:
    """Return the call that watches a command, from the output that is still held on."""
    more = {headers.REPLAY: "1"}
    if not live:
        more[headers.OUTPUT_LIMIT] = str(OUTPUT_BYTES)
    request = process.ConnectRequest(process=_selector(pid))
    return _stream("Connect", request.to_json(), more, None)


def look(pid: Which) -> Call[Events]:
    """Return the call that fetches what is held of a command's output now."""
    request = process.ConnectRequest(process=_selector(pid))
    return _stream("Connect", request.to_json(), {headers.REPLAY: "only"}, None)


def list_all(*, ended: bool) -> Operation[list[CommandInfo]]:
    """Describe the listing of running commands, with `ended` also of those that have ended."""
    more = {headers.ENDED: "1"} if ended else {}
    answer = yield from unary(
        process.PROCESS_SERVICE, "List", b"{}", process.ListResponse, more=more
    )
    found = []
    for one in answer.processes:
        config = one.config or process.ProcessConfig()
        found.append(
            CommandInfo(
                pid=one.pid,
                argv=(config.cmd, *config.args),
                cwd=config.cwd,
                tag=one.tag,
                exit_code=one.exit_code,
                retained=one.retained,
            )
        )
    return found


def send_stdin(pid: int, data: bytes | str, *, terminal: bool) -> Operation[None]:
    """Describe the writing of input."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    step = process.MAX_INPUT_BYTES // 2  # Base64 and all else fit into the other half
    for at in range(0, len(raw), step):
        part = raw[at : at + step]
        given = process.ProcessInput(pty=part) if terminal else process.ProcessInput(stdin=part)
        request = process.SendInputRequest(process=_selector(pid), input=given)
        yield from _about_one("SendInput", request.to_json(), late=UploadTimeoutError)


def close_stdin(pid: int) -> Operation[None]:
    """Describe the end of input."""
    request = process.ConnectRequest(process=_selector(pid))
    yield from _about_one("CloseStdin", request.to_json())


def resize(pid: int, rows: int, columns: int) -> Operation[None]:
    """Describe another size of a terminal."""
    size = process.TerminalSize(rows=rows, cols=columns)
    request = process.UpdateRequest(process=_selector(pid), pty=process.Terminal(size=size))
    yield from _about_one("Update", request.to_json())


def kill(pid: Which, *, gently: bool) -> Operation[bool]:
    """Describe a kill; its value is False where the command was gone."""
    signal = process.Signal.SIGTERM if gently else process.Signal.SIGKILL
    request = process.SendSignalRequest(process=_selector(pid), signal=signal)
    try:
        yield from _about_one("SendSignal", request.to_json())
    except ProcessNotFoundError:
        return False
    return True


def _check_output_bytes(max_output_bytes: int) -> None:
    if isinstance(max_output_bytes, bool) or not isinstance(max_output_bytes, int):
        raise TypeError("max_output_bytes must be an int")
    if not 0 <= max_output_bytes <= OUTPUT_BYTES:
        raise ValueError(f"max_output_bytes must be 0 to {OUTPUT_BYTES}")


class Collector:
    """Makes a result of events, in bounded memory.

    Args:
        check: Whether a status other than 0 is an error.
        max_output_bytes: How much of each stream is held.
    """

    def __init__(self, *, check: bool = False, max_output_bytes: int = OUTPUT_BYTES) -> None:
        self._check = check
        self._out, self._err = OutputBuffer(max_output_bytes), OutputBuffer(max_output_bytes)
        self._code: int | None = None

    def take(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, int):
            self._code = event
            return
        buffer = self._err if event.stream == "stderr" else self._out
        buffer.skip(event.omitted_bytes)
        buffer.append(event.data)

    def result(self) -> CommandResult:
        """Return what is known by now."""
        out, err = self._out.output(), self._err.output()
        return CommandResult(
            exit_code=self._code,
            stdout_bytes=out.head + out.tail,
            stderr_bytes=err.head + err.tail,
            stdout_omitted_bytes=out.omitted_bytes,
            stderr_omitted_bytes=err.omitted_bytes,
            stdout_head_bytes=len(out.head),
            stderr_head_bytes=len(err.head),
        )

    def ended(self) -> CommandResult:
        """Return the result of a command that has ended.

        Raises:
            TransferError: E4007: the stream did not say how it ended.
            CommandFailedError: E5009: the status is not 0, and that is to be an error.
        """
        result = self.result()
        if result.exit_code is None:
            raise TransferError
        if self._check and result.exit_code != 0:
            raise CommandFailedError(result=result)
        return result

    def late(self, error: CommandTimeoutError) -> CommandTimeoutError:
        """Return the error with what the command had written."""
        return CommandTimeoutError(**(error.__dict__ | {"result": self.result()}))


class Events:
    """Turns the stream of a command into events.

    Attributes:
        pid: The command's number, once the stream has started.
        retained: The service said that it keeps the sandbox for the command.

    Args:
        named: The error that the head names, which counts if the stream then ends with one.
    """

    def __init__(self, named: type[AgentSandboxError] | None) -> None:
        self._named = named
        self.started = False
        self.pid = 0
        self.retained = False
        self._envelopes = connect.EnvelopeDecoder(broken=TransferError)
        self._end: connect.Envelope | None = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Give the events that these bytes complete."""
        for envelope in each_envelope(self._envelopes, chunk):
            if envelope.end:
                self._end = envelope  # what came before it is handed on first
                continue
            yield from self._event(envelope.data)

    def finish(self) -> None:
        """Accept the end of the body, or raise what the stream ended with."""
        self._envelopes.finish()
        if self._end is not None:
            check_end(self._envelopes, self._end, self._named, _STREAM_END)

    def _event(self, data: bytes) -> list[Event]:
        try:
            event = process.ProcessResponse.model_validate_json(data).event
        except ValidationError:
            raise TransferError from None
        if event is None:
            return []
        if event.start is not None:
            self.started, self.pid = True, event.start.pid
            self.retained = event.start.retained
        if event.end is not None:
            return [process.code_of(event.end)]
        if event.data is None:
            return []
        omitted = event.data.omitted_bytes
        return [
            CommandOutput(stream=stream, data=found, omitted_bytes=omitted)
            for stream in process.STREAMS
            if (found := getattr(event.data, stream)) is not None
        ]


_STREAM_END: dict[connect.ConnectCode, type[AgentSandboxError]] = STREAM_END | {
    connect.ConnectCode.DEADLINE_EXCEEDED: CommandTimeoutError,
    connect.ConnectCode.NOT_FOUND: ProcessNotFoundError,
    connect.ConnectCode.INVALID_ARGUMENT: ArgumentError,
}


def _selector(pid: Which) -> process.ProcessSelector:
    if isinstance(pid, str) and pid:
        return process.ProcessSelector(tag=pid)
    if isinstance(pid, bool) or not isinstance(pid, int) or not 0 < pid <= 0xFFFF_FFFF:
        raise ProcessNotFoundError
    return process.ProcessSelector(pid=pid)


def _about_one(
    method: str, body: bytes, *, late: type[AgentSandboxError] = TransferTimeoutError
) -> Operation[None]:
    yield from unary(process.PROCESS_SERVICE, method, body, Empty, _ONE, late)


_ONE = Failures(READ.by_status | {400: ArgumentError, 404: ProcessNotFoundError}, READ.other)


def _stream(
    method: str, body: bytes, more: Mapping[str, str], timeout_s: float | None
) -> Call[Events]:
    lines = rpc_headers(connect.STREAM_TYPE) | {
        "connect-accept-encoding": "identity",
        headers.KEEPALIVE_PING_INTERVAL: "50",
        **more,
    }
    if timeout_s is not None:
        lines[headers.CONNECT_TIMEOUT_MS] = str(max(1, round(timeout_s * 1000)))
    return Call(
        method="POST",
        path=f"/{process.PROCESS_SERVICE}/{method}",
        headers=lines,
        content=connect.encode_envelope(body),
        accept=_events,
        deadline_s=None if timeout_s is None else timeout_s + _SLACK_S,
        timeout_error=CommandTimeoutError,
    )


def _events(head: Head) -> Events:
    READ.check(head, 200)
    require_identity(head)
    return Events(named_error(head))
