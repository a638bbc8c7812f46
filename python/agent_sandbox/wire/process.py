"""Messages of the E2B-compatible wire: `process.Process`.

Fields as in E2B's public `process.proto`; the JSON form is that of protobuf, with each `oneof` laid
flat: exactly one of its fields is set. Output messages are written by `encode_data` and not by a
model, since all output of all commands passes through them.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, StrictBool

from agent_sandbox.bytestream import Base64Error, b64decode, b64encode
from agent_sandbox.wire.e2b import Empty, ProtoMessage

PROCESS_SERVICE = "process.Process"
"""First path segment of the process RPCs."""

MAX_INPUT_BYTES = 4_194_304
"""Longest message that Start and the input RPCs take (4 MiB)."""

Stream = Literal["stdout", "stderr", "pty"]
"""Where output comes from; a terminal is one stream."""

STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "pty")


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is expected")
    return value


def _read_bytes(value: Any) -> Any:
    """Read protobuf JSON's bytes: Base64 with either alphabet, padded or not."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("Base64 text is expected")
    try:
        return b64decode(value)
    except Base64Error:
        text = value.replace("-", "+").replace("_", "/").rstrip("=")
        return b64decode(text + "=" * (-len(text) % 4))


_UInt32 = Annotated[int, BeforeValidator(_number), Field(ge=0, le=0xFFFF_FFFF)]
_Int64 = Annotated[int, PlainSerializer(str, return_type=str, when_used="json")]
_Bytes = Annotated[
    bytes,
    BeforeValidator(_read_bytes),
    PlainSerializer(b64encode, return_type=str, when_used="json"),
]


class Signal(enum.StrEnum):
    """The signals that a caller may send."""

    UNSPECIFIED = "SIGNAL_UNSPECIFIED"
    SIGTERM = "SIGNAL_SIGTERM"
    SIGKILL = "SIGNAL_SIGKILL"


_SIGNAL_NUMBERS = {15: Signal.SIGTERM, 9: Signal.SIGKILL}


def _read_signal(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return _SIGNAL_NUMBERS.get(value, Signal.UNSPECIFIED)
    return value


class ProcessConfig(ProtoMessage):
    """A command: program, arguments, additions to its environment, working directory."""

    cmd: str = ""
    args: list[str] = Field(default=[])
    envs: dict[str, str] = Field(default={}, repr=False)
    cwd: str | None = None


class TerminalSize(ProtoMessage):
    """Columns and rows of a terminal."""

    cols: _UInt32 = 0
    rows: _UInt32 = 0


class Terminal(ProtoMessage):
    """A pseudo terminal."""

    size: TerminalSize | None = None


class StartRequest(ProtoMessage):
    """Starts a command.

    Attributes:
        pty: Gives it a terminal in place of three streams.
        tag: A name by which a selector may find it.
        stdin: Whether it has a standard input; absent counts as true, as old clients expect.
    """

    process: ProcessConfig | None = None
    pty: Terminal | None = None
    tag: str | None = None
    stdin: StrictBool | None = None


class ProcessSelector(ProtoMessage):
    """Names a running command, by its number or its tag."""

    pid: _UInt32 | None = None
    tag: str | None = None


class ConnectRequest(ProtoMessage):
    """Watches a running command; also the body of CloseStdin."""

    process: ProcessSelector | None = None


class ProcessInput(ProtoMessage):
    """Bytes for a command's input; `pty` for one with a terminal."""

    stdin: _Bytes | None = None
    pty: _Bytes | None = None


class SendInputRequest(ProtoMessage):
    """Writes to a command's input."""

    process: ProcessSelector | None = None
    input: ProcessInput | None = None


class StreamInputRequest(ProtoMessage):
    """One message of an input stream: `start` in the first, then data and signs of life."""

    start: ConnectRequest | None = None
    data: SendInputRequest | None = None
    keepalive: Empty | None = None


class SendSignalRequest(ProtoMessage):
    """Sends a signal to a command."""

    process: ProcessSelector | None = None
    signal: Annotated[Signal, BeforeValidator(_read_signal)] = Signal.UNSPECIFIED


class UpdateRequest(ProtoMessage):
    """Changes a running command: the size of its terminal."""

    process: ProcessSelector | None = None
    pty: Terminal | None = None


class ProcessInfo(ProtoMessage):
    """One command.

    Attributes:
        retained: It keeps its sandbox (`headers.RETAIN`); like the next, only for callers that
            asked for more.
        exit_code: Its status once it has ended, a signal as a negative number.
    """

    config: ProcessConfig | None = None
    pid: _UInt32 = 0
    tag: str | None = None
    retained: StrictBool = False
    exit_code: int | None = None


class ListResponse(ProtoMessage):
    """Answer of List."""

    processes: list[ProcessInfo] = Field(default=[])


class StartEvent(ProtoMessage):
    """The command runs.

    Attributes:
        retained: It keeps its sandbox; only for callers that asked for that.
    """

    pid: _UInt32 = 0
    retained: StrictBool = False


class DataEvent(ProtoMessage):
    """Output; exactly one of the three streams is set.

    Attributes:
        omitted_bytes: Bytes of this stream left out right before; only for callers that asked for
            less than everything.
    """

    stdout: _Bytes | None = None
    stderr: _Bytes | None = None
    pty: _Bytes | None = None
    omitted_bytes: _Int64 = 0


class EndEvent(ProtoMessage):
    """The command has ended.

    Attributes:
        exit_code: Its status; -1 where a signal ended it.
        exited: Whether it ended by itself.
        status: `exit status 3` or `signal: killed`.
        error: The same where it failed.
    """

    exit_code: int = 0
    exited: StrictBool = False
    status: str = ""
    error: str | None = None


class ProcessEvent(ProtoMessage):
    """One event; exactly one field is set."""

    start: StartEvent | None = None
    data: DataEvent | None = None
    end: EndEvent | None = None
    keepalive: Empty | None = None


class ProcessResponse(ProtoMessage):
    """One message of the streams of Start and Connect."""

    event: ProcessEvent | None = None


def encode_data(stream: Stream, data: bytes, omitted_bytes: int = 0) -> bytes:
    """Return the message of some output, as JSON in UTF-8."""
    gap = f',"omittedBytes":"{omitted_bytes}"' if omitted_bytes else ""
    return f'{{"event":{{"data":{{"{stream}":"{b64encode(data)}"{gap}}}}}}}'.encode()


def encode_event(event: StartEvent | EndEvent | None) -> bytes:
    """Return the message of a start or an end, and of None a sign of life."""
    if isinstance(event, StartEvent):
        return ProcessResponse(event=ProcessEvent(start=event)).to_json()
    if isinstance(event, EndEvent):
        return ProcessResponse(event=ProcessEvent(end=event)).to_json()
    return ProcessResponse(event=ProcessEvent(keepalive=Empty())).to_json()


_SIGNAL_TEXTS = {
    1: "hangup",
    2: "interrupt",
    3: "quit",
    4: "illegal instruction",
    5: "trace/breakpoint trap",
    6: "aborted",
    7: "bus error",
    8: "floating point exception",
    9: "killed",
    10: "user defined signal 1",
    11: "segmentation fault",
    12: "user defined signal 2",
    13: "broken pipe",
    14: "alarm clock",
    15: "terminated",
}


def end_of(code: int) -> EndEvent:
    """Return the event for a status; a negative one is the signal that ended the command."""
    if code < 0:
        text = f"signal: {_SIGNAL_TEXTS.get(-code, f'signal {-code}')}"
        return EndEvent(exit_code=-1, exited=False, status=text, error=text)
    text = f"exit status {code}"
    return EndEvent(exit_code=code, exited=True, status=text, error=text if code else None)


def code_of(end: EndEvent) -> int:
    """Return the status that an event tells of, the reverse of `end_of`; -1 for any signal."""
    name = end.status.removeprefix("signal: ").removesuffix(" (core dumped)")
    if end.exited or name == end.status:
        return end.exit_code
    for number, text in _SIGNAL_TEXTS.items():
        if name == text:
            return -number
    number_text = name.removeprefix("signal ")
    known = number_text.isascii() and number_text.isdigit() and len(number_text) < 3
    return -int(number_text) if known else -1
