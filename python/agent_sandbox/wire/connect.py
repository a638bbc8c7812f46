"""The Connect protocol in JSON, for both sides: unary calls and server streams.

A unary call is one `application/json` body each way; a failure is an HTTP error with
`{"code": ..., "message": ...}`. A stream is a row of envelopes of `application/connect+json`: one
byte of flags, four bytes of big-endian length, the message; the last one carries `FLAG_END` and,
where the stream failed, `{"error": {...}}`. Source: the Connect protocol reference, version 1.

Nothing here reads or writes a socket. Compression is neither offered nor accepted.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_sandbox.errors import AgentSandboxError, SizeLimitError, TransferError

PROTOCOL_VERSION = "1"
UNARY_TYPE = "application/json"
STREAM_TYPE = "application/connect+json"

MAX_MESSAGE_BYTES = 4_194_304
"""Longest message either side accepts, unless it says otherwise (4 MiB)."""

FLAG_END = 0x02

_PREFIX = struct.Struct(">BI")

PREFIX_BYTES = _PREFIX.size
"""Bytes of an envelope before its message."""


class ConnectCode(enum.StrEnum):
    """The error codes of the protocol."""

    CANCELED = "canceled"
    UNKNOWN = "unknown"
    INVALID_ARGUMENT = "invalid_argument"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    PERMISSION_DENIED = "permission_denied"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    ABORTED = "aborted"
    OUT_OF_RANGE = "out_of_range"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    DATA_LOSS = "data_loss"
    UNAUTHENTICATED = "unauthenticated"


CODE_OF_STATUS: dict[int, ConnectCode] = {
    400: ConnectCode.INVALID_ARGUMENT,
    401: ConnectCode.UNAUTHENTICATED,
    403: ConnectCode.PERMISSION_DENIED,
    404: ConnectCode.NOT_FOUND,
    409: ConnectCode.ALREADY_EXISTS,
    413: ConnectCode.RESOURCE_EXHAUSTED,
    429: ConnectCode.RESOURCE_EXHAUSTED,
    499: ConnectCode.CANCELED,
    500: ConnectCode.INTERNAL,
    501: ConnectCode.UNIMPLEMENTED,
    502: ConnectCode.UNAVAILABLE,
    503: ConnectCode.UNAVAILABLE,
    504: ConnectCode.DEADLINE_EXCEEDED,
    507: ConnectCode.RESOURCE_EXHAUSTED,
}
"""What an HTTP status means as a Connect code, as E2B's own clients read it."""


class ErrorBody(BaseModel):
    """The body of a failed call, and the `error` of a failed stream.

    Attributes:
        code: A `ConnectCode`; text that is none is kept as `unknown`.
        message: For people. Our own services put a fixed text here; clients must not show it.
    """

    model_config = ConfigDict(extra="ignore")

    code: str
    message: str = ""

    @property
    def connect_code(self) -> ConnectCode:
        """The code as a member of `ConnectCode`."""
        try:
            return ConnectCode(self.code)
        except ValueError:
            return ConnectCode.UNKNOWN


class _End(BaseModel):
    model_config = ConfigDict(extra="ignore")

    error: ErrorBody | None = None
    metadata: dict[str, list[str]] | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """One envelope of a stream.

    Attributes:
        data: The message as it came: JSON text in UTF-8.
        end: Whether this is the last envelope; `end_error` reads it.
    """

    data: bytes
    end: bool


def encode_envelope(data: bytes) -> bytes:
    """Return one message of a stream, ready to send."""
    return _PREFIX.pack(0, len(data)) + data


def encode_end(
    error: ErrorBody | None = None, metadata: dict[str, list[str]] | None = None
) -> bytes:
    """Return the envelope that ends a stream, with the error where it failed.

    Args:
        error: Why it failed; None for a good end.
        metadata: What a header would say, had it been known before the first message.
    """
    data = _End(error=error, metadata=metadata).model_dump_json(exclude_none=True).encode()
    return _PREFIX.pack(FLAG_END, len(data)) + data


class EnvelopeDecoder:
    """Splits the bytes of a stream into envelopes, however they are cut.

    Holds at most one incomplete message. Not safe for use from several threads.

    Args:
        max_message_bytes: Longest message that is accepted.
        broken: What to raise for bytes that are no stream of envelopes: `TransferError` where the
            peer is a service, `ArgumentError` where it is a caller.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        broken: type[AgentSandboxError] = TransferError,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._broken = broken
        self._buffer = bytearray()
        self._ended = False

    def feed(self, chunk: bytes) -> list[Envelope]:
        """Take the next bytes and return the envelopes they complete, in order.

        What is broken behind whole envelopes is raised by the next call, `finish` too, so that
        what is seen of a stream does not depend on how it was cut.

        Raises:
            SizeLimitError: E3001, for a message over the bound, as soon as its length is known.
            AgentSandboxError: The `broken` of the constructor: unknown flags, compression, or
                bytes after the end.
        """
        buffer = self._buffer
        buffer += chunk
        envelopes: list[Envelope] = []
        while buffer:
            try:
                stop = self._next_stop()
            except AgentSandboxError:
                if envelopes:  # the next call finds the same in front
                    break
                raise
            if stop is None:
                break
            self._ended = bool(buffer[0] & FLAG_END)
            envelopes.append(Envelope(bytes(buffer[_PREFIX.size : stop]), self._ended))
            del buffer[:stop]
        return envelopes

    def _next_stop(self) -> int | None:
        """Return where the first envelope ends, None where it is not whole."""
        if self._ended:
            raise self._broken
        if len(self._buffer) < _PREFIX.size:
            return None
        flags, length = _PREFIX.unpack_from(self._buffer)
        if flags & ~FLAG_END:
            raise self._broken
        if length > self._max_message_bytes:
            raise SizeLimitError(self._max_message_bytes)
        stop = _PREFIX.size + length
        return None if len(self._buffer) < stop else stop

    def finish(self, *, needs_end: bool = True) -> None:
        """Declare that no bytes will follow.

        Args:
            needs_end: Whether the end envelope must have come: true for what a service sends. A
                caller's single request message has none.

        Raises:
            AgentSandboxError: The `broken` of the constructor: the stream was cut.
        """
        if self._buffer or (needs_end and not self._ended):
            raise self._broken

    def end_error(self, envelope: Envelope) -> ErrorBody | None:
        """Return the error that an end envelope carries, or None for a good end.

        Raises:
            AgentSandboxError: The `broken` of the constructor: the envelope is no valid end.
        """
        try:
            return _End.model_validate_json(envelope.data).error
        except ValidationError:
            raise self._broken from None

    def end_metadata(self, envelope: Envelope) -> dict[str, list[str]]:
        """Return the metadata of an end envelope: header names in lower case with their values.

        Raises:
            AgentSandboxError: The `broken` of the constructor: the envelope is no valid end.
        """
        try:
            found = _End.model_validate_json(envelope.data).metadata or {}
        except ValidationError:
            raise self._broken from None
        return {name.lower(): values for name, values in found.items()}
