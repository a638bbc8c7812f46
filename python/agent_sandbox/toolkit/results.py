"""Results on the wire: the fields once as structured content, the small ones as text too."""

from __future__ import annotations

import json
from typing import Any

from mcp_types import CallToolResult, TextContent
from mcp_types.version import is_version_at_least

FIRST_STRUCTURED_VERSION = "2025-06-18"
"""The first protocol version whose results have structured content."""

UNREPEATED = "content_base64"
"""The field that stands in structured content only, where that exists."""

LONGEST_REPEATED_TEXT_BYTES = 1_572_864
"""JSON form of a file's text up to which it is repeated in the text block.

Escaping can make 1 MiB of text six times as long, and the text block escapes it again: twice the
worst case would not fit into one STDIO line.
"""


def to_result(
    fields: dict[str, Any],
    protocol_version: str,
    *,
    is_error: bool = False,
    note: str | None = None,
) -> CallToolResult:
    """Build the result of a call.

    The text block is the JSON of `fields`, without `content_base64`; clients on versions without
    structured content get all of it there.

    Args:
        fields: What the tool's output schema describes.
        protocol_version: What the client speaks.
        is_error: Whether the call failed.
        note: What to do with the result, added to the text block only.
    """
    structured = is_version_at_least(protocol_version, FIRST_STRUCTURED_VERSION)
    shown = dict(fields)
    if structured:
        shown.pop(UNREPEATED, None)
        content = shown.get("content")
        if isinstance(content, str) and not _is_short(content):
            del shown["content"]
            note = "The text is too long to be repeated here: read structuredContent.content."
    if note is not None:
        shown["note"] = note
    return CallToolResult(
        content=[TextContent(type="text", text=to_json(shown))],
        structured_content=fields if structured else None,
        is_error=is_error,
    )


def to_json(value: Any) -> str:
    """Return compact JSON with characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _is_short(content: str) -> bool:
    return (
        len(content) <= LONGEST_REPEATED_TEXT_BYTES // 6
        or len(to_json(content).encode()) <= LONGEST_REPEATED_TEXT_BYTES
    )
