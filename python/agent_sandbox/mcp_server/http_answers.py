"""Answers of ours at the HTTP edge, before and beside those of the SDK."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from mcp_types import INVALID_REQUEST
from starlette.responses import Response
from starlette.types import Receive

from agent_sandbox.mcp_server.envelopes import error_answer

LINGER_BYTES = 16_777_216
LINGER_S = 5.0
"""How much, and for how long, a body that nobody wants is read and dropped before its answer."""


def refuse(
    status: int,
    text: str,
    headers: Mapping[str, str] | None = None,
    *,
    code: int = INVALID_REQUEST,
) -> Response:
    """Return an error answer with a fixed text; after 408 and 413 the connection is closed."""
    answer = error_answer(code, text)
    closing = {"connection": "close"} if status in (408, 413) else {}
    return Response(
        answer.model_dump_json(by_alias=True, exclude_unset=True),
        status_code=status,
        media_type="application/json",
        headers={**closing, **(headers or {})},
    )


async def drop_body(receive: Receive) -> None:
    """Read what the client still sends: answered meanwhile, the answer would be lost in a reset."""
    size = 0
    with anyio.move_on_after(LINGER_S):
        while size < LINGER_BYTES:
            message = await receive()
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
