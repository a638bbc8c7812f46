"""Unary calls of Connect services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic import BaseModel

from agent_sandbox.client._answers import READ, Failures, require_identity, service_error
from agent_sandbox.client._calls import Call, Head, Operation, Sink, exchange
from agent_sandbox.client._sinks import Parsed
from agent_sandbox.errors import (
    AgentSandboxError,
    SizeLimitError,
    TransferError,
    TransferTimeoutError,
)
from agent_sandbox.wire import connect, headers

M = TypeVar("M", bound=BaseModel)


def unary(
    service: str,
    method: str,
    body: bytes,
    answer: type[M],
    failures: Failures = READ,
    late: type[AgentSandboxError] = TransferTimeoutError,
    more: Mapping[str, str] | None = None,
) -> Operation[M]:
    """Describe one unary call; its value is the answer's message.

    Args:
        service: First segment of the path.
        method: Second one.
        body: The request message.
        answer: What the answer is read as.
        failures: What other statuses than 200 mean.
        late: What is raised when time is over.
        more: Further headers.
    """

    def accept(head: Head) -> Sink[M]:
        failures.check(head, 200)
        require_identity(head)
        return Parsed(connect.MAX_MESSAGE_BYTES, answer.model_validate_json, TransferError)

    return (
        yield from exchange(
            Call(
                method="POST",
                path=f"/{service}/{method}",
                headers=rpc_headers(connect.UNARY_TYPE) | dict(more or {}),
                content=body,
                accept=accept,
                timeout_error=late,
            )
        )
    )


def rpc_headers(content_type: str) -> dict[str, str]:
    """Return the headers of every call of a Connect service."""
    return {
        "content-type": content_type,
        headers.CONNECT_PROTOCOL_VERSION: connect.PROTOCOL_VERSION,
    }


def each_envelope(decoder: connect.EnvelopeDecoder, chunk: bytes) -> Iterator[connect.Envelope]:
    """Give the envelopes that a chunk completes, and raise what is broken behind them.

    Raises:
        TransferError: E4007.
    """
    try:
        while envelopes := decoder.feed(chunk):
            yield from envelopes
            chunk = b""
    except SizeLimitError:
        raise TransferError from None


def check_end(
    decoder: connect.EnvelopeDecoder,
    envelope: connect.Envelope,
    named: type[AgentSandboxError] | None,
    meanings: Mapping[connect.ConnectCode, type[AgentSandboxError]],
) -> None:
    """Accept a good end of a stream, or raise what it ended with.

    The code of our own services decides: beside the end, else in the head (`named`); without one
    the Connect code does.
    """
    error = decoder.end_error(envelope)
    if error is None:
        return
    for code in decoder.end_metadata(envelope).get(headers.ERROR_CODE, []):
        if known := service_error(code):
            raise known
    raise named or meanings.get(error.connect_code, TransferError)
