"""Answers of every kind of request: their form, and the size of their pieces."""

from __future__ import annotations

from starlette.responses import Response

CHUNK_BYTES = 262_144
"""Sent in one step, and read from disk in one: a download holds it in memory twice."""


def json_answer(data: bytes, status: int = 200, more: dict[str, str] | None = None) -> Response:
    """Return an answer of ready JSON that no cache keeps."""
    return Response(
        data,
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"} | (more or {}),
    )
