"""What both drivers share: the request as httpx wants it, and the reading of its faults."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import httpcore2

from agent_sandbox.client._calls import Call, Head, Target
from agent_sandbox.client._content import Content
from agent_sandbox.errors import AgentSandboxError, SandboxUnavailableError
from agent_sandbox.limits import RESOLVE_TIMEOUT_S, TRANSFER_TIMEOUT_S

Timeouts = tuple[float | None, float | None, float | None, float | None]
"""Connect, read, write, pool: the form that httpx and httpx2 both take."""

WITHOUT_DEADLINE: Timeouts = (
    RESOLVE_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
)
"""No single wait lasts longer, where a call has no deadline."""

Faults = tuple[type[Exception], ...]


class Response(Protocol):
    """The part of httpx's and httpx2's responses that both drivers use."""

    status_code: int
    http_version: Any
    headers: Any
    extensions: Any
    stream: Any


def faults_of(client: object) -> Faults:
    """Return the exceptions by which a client says that an exchange broke.

    Raises:
        TypeError: The client is neither of httpx nor of httpx2.
    """
    for cls in type(client).__mro__:
        family = cls.__module__.partition(".")[0]
        if family in ("httpx", "httpx2"):
            lib = sys.modules[family]
            return (
                lib.HTTPError,
                lib.InvalidURL,
                lib.StreamError,
                httpcore2.TimeoutException,
                httpcore2.NetworkError,
                httpcore2.ProtocolError,
                httpcore2.ProxyError,
                httpcore2.UnsupportedProtocol,
            )
    raise TypeError("http_client must be a client of httpx or httpx2")


def blame(call: Call[Any], fault: Exception) -> AgentSandboxError:
    """Return the error that stands for a fault of the client library; its text is dropped."""
    kinds = {cls.__name__ for cls in type(fault).__mro__}
    if kinds & {"ConnectError", "ProxyError"}:
        return SandboxUnavailableError()
    if "ConnectTimeout" in kinds and call.deadline_s is None:
        return SandboxUnavailableError()
    if "TimeoutException" in kinds:
        return call.timeout_error()
    return call.broken_error()


def url_of(call: Call[Any], target: Target) -> str:
    """Return the whole URL; every byte of a value is literal, `%` and `+` too."""
    query = urlencode(call.params, quote_via=quote)
    return f"{target.base_url}{call.path}{'?' if query else ''}{query}"


def headers_of(call: Call[Any], target: Target) -> Mapping[str, str]:
    """Return the headers of a call; its own win over the target's."""
    known = call.content.headers if isinstance(call.content, Content) else {}
    return {"accept-encoding": "identity", **target.headers, **call.headers, **known}


def head_of(response: Response) -> Head:
    """Return what is known before the body."""
    return Head(response.status_code, response.http_version, response.headers)


def has_leftover(response: Response) -> bool:
    """Tell whether bytes came behind the end of this response.

    Such a connection must not be used again: the next request would read them as its own answer.
    Neither httpx nor httpx2 looks (h11 holds them back as `trailing_data`), so this walks to the
    parser through private names; a test fails when one vanishes. With another transport the
    answer is False.
    """
    node = response.stream
    for name in ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state"):
        node = getattr(node, name, None)
        if node is None:
            return False
    return bool(node.trailing_data[0])
