"""Fetch a public link on behalf of an agent, without becoming its way into a private network.

Https only. The host is resolved once, every address it has must be public, and the connection goes
to one of exactly these addresses; each redirect is checked the same way. Proxy settings of the
environment are not used, no cookie and no credential is sent.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from agent_sandbox.errors import (
    FetchError,
    FetchRefusedError,
    FileSizeLimitError,
    TransferError,
    TransferTimeoutError,
)
from agent_sandbox.uploads.addresses import is_public
from agent_sandbox.uploads.exchange import Exchange, Response
from agent_sandbox.uploads.lookups import system_resolver

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Takes a host and a port, returns every address that the name has."""

Connector = Callable[
    [str, int, ssl.SSLContext, str],
    Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
]
"""Takes address, port, TLS settings and the name to verify; opens the connection."""

MAX_URL_CHARS = 2_048
"""Longest link."""

_URL = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # visible ASCII without the backslash
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


async def connect_tls(
    address: str, port: int, context: ssl.SSLContext, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to one numeric address and verify the certificate for `name`."""
    return await asyncio.open_connection(address, port, ssl=context, server_hostname=name)


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """What a fetch may do.

    Attributes:
        max_bytes: Largest body.
        deadline_s: Wall-clock time for everything, from the first look-up to the last byte.
        idle_s: Longest wait for a connection or for the next piece.
        max_redirects: How many redirects are followed.
        ports: Ports that a link may name.
        resolver: Finds the addresses of a name.
        connect: Opens the connection to a checked address.
        ssl_context: TLS settings; its CA decides whom to believe.
    """

    max_bytes: int
    deadline_s: float = 60.0
    idle_s: float = 10.0
    max_redirects: int = 5
    ports: frozenset[int] = frozenset({443})
    resolver: Resolver = system_resolver
    connect: Connector = connect_tls
    ssl_context: ssl.SSLContext = field(default_factory=ssl.create_default_context)


@dataclass(frozen=True, slots=True)
class Fetched:
    """An open public link.

    Attributes:
        size_bytes: What the server declares, or None; not to be trusted, `chunks` counts.
        chunks: The body, once. It ends only when the whole body is there.
    """

    size_bytes: int | None
    chunks: AsyncIterator[bytes]


@asynccontextmanager
async def fetch(url: str, policy: FetchPolicy) -> AsyncIterator[Fetched]:
    """Open a public https link and hand over its body, bounded in size and time.

    The connection is closed at the end of the block, whatever happened.

    Raises:
        FetchRefusedError: E7030, the link, or one it redirects to, may not be fetched from here;
            no byte was sent to it.
        FetchError: E7031, the server could not be reached, answered otherwise than 200, or broke
            off.
        FileSizeLimitError: E4003, declared or counted more than `max_bytes`.
        TransferTimeoutError: E4008, too slow.
    """
    opened: Exchange | None = None
    try:
        async with asyncio.timeout(policy.deadline_s) as whole:
            opened, response = await _follow(url, policy)
            yield Fetched(_declared(response, policy), _body(opened, policy))
    except TimeoutError:
        if whole.expired():
            raise TransferTimeoutError from None
        raise  # the caller's own, from inside the block
    finally:
        if opened is not None:
            await opened.close()


async def _follow(url: str, policy: FetchPolicy) -> tuple[Exchange, Response]:
    for _ in range(policy.max_redirects + 1):
        exchange, response = await _get(url, policy)
        if response.status == 200:
            return exchange, response
        await exchange.close()
        location = response.values(b"location")
        if response.status not in _REDIRECTS or len(location) != 1:
            raise FetchError
        try:
            url = urljoin(url, location[0].decode("latin-1"))
        except ValueError:  # a bracket without its other half
            raise FetchRefusedError from None
    raise FetchRefusedError


async def _get(url: str, policy: FetchPolicy) -> tuple[Exchange, Response]:
    host, port, target = _split(url, policy)
    try:
        async with asyncio.timeout(policy.idle_s):
            addresses = await policy.resolver(host, port)
    except TimeoutError:
        raise TransferTimeoutError from None
    except (OSError, UnicodeError):
        raise FetchError from None
    if not addresses:
        raise FetchError
    if not all(is_public(address) for address in addresses):
        raise FetchRefusedError
    exchange = await _connect(addresses, host, port, policy)
    try:
        async with asyncio.timeout(policy.idle_s):
            await exchange.send_head("GET", target, _headers(host, port))
            await exchange.end()
            return exchange, await exchange.response()
    except BaseException as error:
        await exchange.close()
        if isinstance(error, TimeoutError):
            raise TransferTimeoutError from None
        if isinstance(error, TransferError):
            raise FetchError from None
        raise


async def _connect(addresses: list[str], host: str, port: int, policy: FetchPolicy) -> Exchange:
    for address in addresses:
        try:
            async with asyncio.timeout(policy.idle_s):
                pair = await policy.connect(address, port, policy.ssl_context, host)
                return Exchange(*pair)
        except OSError:  # with TimeoutError and ssl.SSLError: the next address may do
            continue
    raise FetchError


def _split(url: str, policy: FetchPolicy) -> tuple[str, int, str]:
    """Take a link apart, or refuse it before anything is looked up."""
    if len(url) > MAX_URL_CHARS or not _URL.fullmatch(url):
        raise FetchRefusedError
    try:
        parts = urlsplit(url)
        port = 443 if parts.port is None else parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:  # also UnicodeError
        raise FetchRefusedError from None
    if (
        parts.scheme != "https"
        or not host
        or "%" in host
        or "@" in parts.netloc
        or port not in policy.ports
    ):
        raise FetchRefusedError
    target = parts.path or "/"
    return host, port, f"{target}?{parts.query}" if parts.query else target


def _headers(host: str, port: int) -> list[tuple[bytes, bytes]]:
    name = f"[{host}]" if ":" in host else host
    authority = name if port == 443 else f"{name}:{port}"
    return [
        (b"host", authority.encode()),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"agent-sandbox"),
        (b"connection", b"close"),
    ]


def _declared(response: Response, policy: FetchPolicy) -> int | None:
    """Check how the body is coded and delimited before any of it is read."""
    codings = {value.strip().lower() for value in response.values(b"content-encoding")}
    lengths = response.values(b"content-length")
    chunked = response.values(b"transfer-encoding")
    if codings - {b"identity"} or (lengths and chunked) or not (lengths or chunked):
        raise FetchError  # without length and chunking a cut body looks like a whole one
    size = int(lengths[0]) if lengths else None
    if size is not None and size > policy.max_bytes:
        raise FileSizeLimitError(policy.max_bytes)
    return size


async def _body(exchange: Exchange, policy: FetchPolicy) -> AsyncIterator[bytes]:
    left = policy.max_bytes
    chunks = exchange.chunks()
    while True:
        try:
            async with asyncio.timeout(policy.idle_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise TransferTimeoutError from None
        except TransferError:
            raise FetchError from None
        if chunk is None:
            return
        left -= len(chunk)
        if left < 0:
            raise FileSizeLimitError(policy.max_bytes)
        yield chunk
