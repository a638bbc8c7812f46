"""The words in which operations and drivers talk; nothing here touches a socket.

An operation is a generator. It yields a `Call`, is sent the value that the call's sink made of the
answer, and returns its own result. A driver runs it: one for async, one for blocking clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from agent_sandbox.client._content import Content
from agent_sandbox.errors import AgentSandboxError, TransferError, TransferTimeoutError
from agent_sandbox.limits import TRANSFER_TIMEOUT_S

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Sink(Protocol[T_co]):
    """Takes a body in order, chunk by chunk, and makes a value of it."""

    @property
    def slow(self) -> bool:
        """Whether `finish` is work for another thread than an event loop's."""

    def feed(self, chunk: bytes, /) -> object: ...

    def finish(self) -> T_co: ...

    def discard(self) -> None:
        """Undo what was taken: called where there is no `finish`, or it raised."""


@runtime_checkable
class SpillingSink(Sink[T_co], Protocol[T_co]):
    """A sink that holds chunks until `feed` says that it is time to `spill`.

    That is work for another thread, as `finish` is: a disk, or unpacking.
    """

    def spill(self) -> None: ...


class Decoder(Protocol[T_co]):
    """Turns the body of a stream into items.

    Attributes:
        started: Whether the service has said that the stream runs.
    """

    started: bool

    def feed(self, chunk: bytes, /) -> Iterable[T_co]:
        """Give items one by one, and raise behind those that were whole."""

    def finish(self) -> None:
        """Declare the end of the body, or raise where it may not end here."""


class Headers(Protocol):
    """The part of httpx's and httpx2's `Headers` that is used."""

    def get_list(self, key: str, split_commas: bool = ...) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an answer before its body.

    Attributes:
        status: HTTP status.
        http_version: `HTTP/1.1`, as httpx writes it.
        headers: As they came.
    """

    status: int
    http_version: str
    headers: Headers

    def all(self, name: str) -> list[str]:
        """Return every value of a header, over all its lines, split at commas, lower case."""
        return [item.strip().lower() for item in self.headers.get_list(name, split_commas=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T_co]):
    """One request, and what to do with its answer.

    Attributes:
        accept: Looks at the head and returns the `Sink` (or `Decoder`) for the body, or raises:
            then no byte of the body is read and the response is closed.
        content: Body to send.
        deadline_s: Wall-clock time around connecting, sending, the head and the body. None: no
            such bound, but no single wait is longer than `TRANSFER_TIMEOUT_S`.
        timeout_error: Raised when time is over.
        broken_error: Raised when the exchange breaks.
        endless: Whether a stream has no end but its closing, which then ends an iteration.
    """

    method: str
    path: str
    accept: Callable[[Head], T_co]
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content | bytes | None = None
    deadline_s: float | None = TRANSFER_TIMEOUT_S
    timeout_error: type[AgentSandboxError] = TransferTimeoutError
    broken_error: type[AgentSandboxError] = TransferError
    endless: bool = False


Operation = Generator[Call[Any], Any, T]
"""A description of work without I/O, that ends in a value of type `T`."""


def exchange(call: Call[Sink[T]]) -> Operation[T]:
    """Yield one call and return its value; gives `yield from` a type."""
    value: T = yield call
    return value


@dataclass(frozen=True, slots=True)
class Target:
    """Where calls go.

    Attributes:
        base_url: Without a trailing slash.
        headers: Credentials and routing, sent with every call; secret, so they have no repr.
    """

    base_url: str
    headers: Mapping[str, str] = field(repr=False)
