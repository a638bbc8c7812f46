"""The body of one PUT as bounded, timed chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.types import Receive

from agent_sandbox.errors import UploadBodyError, UploadBodyTimeoutError


async def body_chunks(
    receive: Receive,
    size_bytes: int,
    *,
    idle_s: float,
    end: float,
    late: Callable[[], None] = lambda: None,
) -> AsyncGenerator[bytes, None]:
    """Yield the body; end only when the server says that it ended and the count is right.

    Both deadlines run on the loop's monotonic clock. Idle time counts only while the client is
    waited for, so slow storage costs it nothing but the total.

    Args:
        receive: Of the request.
        size_bytes: The declared size.
        idle_s: Longest wait for the next chunk.
        end: When the whole must have arrived, on the loop's clock.
        late: Called before the error of a missed deadline goes its way.

    Raises:
        UploadBodyError: E7015, the body is short, long, or broke off.
        UploadBodyTimeoutError: E7016, nothing came for `idle_s`, or `end` passed.
    """
    clock = asyncio.get_running_loop().time
    left = size_bytes
    more = True
    while more:
        try:
            async with asyncio.timeout_at(min(end, clock() + idle_s)):
                message = await receive()
        except TimeoutError:
            late()
            raise UploadBodyTimeoutError from None
        if message["type"] != "http.request":
            raise UploadBodyError
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        left -= len(chunk)
        if left < 0 or (not more and left):
            raise UploadBodyError
        if clock() >= end:
            late()
            raise UploadBodyTimeoutError
        if chunk:
            yield chunk
