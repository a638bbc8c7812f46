"""One small document from a URL, bounded in bytes and in time."""

from __future__ import annotations

from agent_sandbox.client._answers import require_framing, require_identity
from agent_sandbox.client._calls import Call, Head, Operation, Sink, Target, exchange
from agent_sandbox.client._drive_async import AsyncDriver
from agent_sandbox.client._http import async_client
from agent_sandbox.client._sinks import Bytes
from agent_sandbox.errors import TransferError


async def fetch_document(
    url: str, *, max_bytes: int, deadline_s: float, accept: str = "application/json"
) -> bytes:
    """Return the body of a 200 answer to one GET, whole or not at all.

    Redirects are not followed and compression is refused. The proxies of the environment are
    used, but not for loopback.

    Args:
        url: The document; it comes from the operator, never from a caller.
        max_bytes: Longest body.
        deadline_s: Wall-clock seconds for all of it.
        accept: The Accept header.

    Raises:
        FileSizeLimitError: E4003, it is longer than `max_bytes`.
        TransferError: E4007, another status, or a body that broke.
        TransferTimeoutError: E4008, time was over.
        SandboxUnavailableError: E5003, nobody answers there.
    """

    def judge(head: Head) -> Sink[bytes]:
        if head.status != 200:
            raise TransferError
        require_identity(head)
        return Bytes(max_bytes, require_framing(head))

    def get() -> Operation[bytes]:
        call = Call(
            method="GET", path="", accept=judge, headers={"accept": accept}, deadline_s=deadline_s
        )
        return (yield from exchange(call))

    async with async_client(None) as http:
        return await AsyncDriver(http).run(get(), Target(url, {}))
