"""Output of commands as fields of results: text where it is text, the exact bytes where not."""

from __future__ import annotations

from typing import Any

from agent_sandbox.bytestream import b64encode
from agent_sandbox.mcp_server import schemas
from agent_sandbox.models import CommandResult
from agent_sandbox.output import OutputBuffer

OUTPUT_BYTES = 65_536
"""Output of one stream that a result holds (64 KiB)."""

_LEADS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))
"""First bytes of longer characters, and how many bytes those have (RFC 3629 section 4)."""

COUNT: schemas.Schema = {"type": "integer", "minimum": 0}


def result_fields(result: CommandResult) -> dict[str, Any]:
    """Return both streams of a command, each with its first and its last part."""
    fields: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        data: bytes = getattr(result, f"{name}_bytes")
        at: int = getattr(result, f"{name}_head_bytes")
        omitted: int = getattr(result, f"{name}_omitted_bytes")
        fields |= _stream_fields(name, data if not omitted else data[:at], omitted, data[at:])
    return fields


def _stream_fields(name: str, head: bytes, omitted_bytes: int, tail: bytes) -> dict[str, Any]:
    buffer = OutputBuffer(OUTPUT_BYTES)
    buffer.append(head)
    if omitted_bytes:
        buffer.skip(omitted_bytes)
        buffer.append(tail)
    held = buffer.output()
    head, tail, omitted_bytes = held.head, held.tail, held.omitted_bytes
    if not omitted_bytes:
        return {name: head.decode(errors="replace"), f"{name}_omitted_bytes": 0} | _exact(
            f"{name}_base64", head
        )
    # The gap may have cut a character in two: the halves are left out with it.
    whole_head = head[: len(head) - _cut_at_end(head)]
    whole_tail = tail[_cut_at_start(tail) :]
    if _is_text(whole_head) and _is_text(whole_tail):
        omitted_bytes += len(head) + len(tail) - len(whole_head) - len(whole_tail)
        head, tail = whole_head, whole_tail
    gap = f"\n[... {omitted_bytes} bytes left out ...]\n"
    text = head.decode(errors="replace") + gap + tail.decode(errors="replace")
    fields: dict[str, Any] = {name: text, f"{name}_omitted_bytes": omitted_bytes}
    if not (_is_text(head) and _is_text(tail)):
        fields[f"{name}_base64"] = b64encode(head + tail)
        fields[f"{name}_head_bytes"] = len(head)
    return fields


RESULT: dict[str, schemas.Schema] = {
    part: rules
    for name, title in (("stdout", "Standard output"), ("stderr", "Standard error"))
    for part, rules in {
        name: schemas.text(
            f"{title}. Where too much came, the first and the last part, with a line between that"
            " says how many bytes are left out. What is no UTF-8 is shown as U+FFFD."
        ),
        f"{name}_omitted_bytes": {**COUNT, "description": "Bytes that are left out."},
        f"{name}_base64": schemas.text(
            f"Only where {name} is no UTF-8: the exact bytes that are held."
        ),
        f"{name}_head_bytes": {
            **COUNT,
            "description": f"With {name}_base64: how many of its bytes came before the gap.",
        },
    }.items()
}
"""What `result_fields` returns."""

OPTIONAL = tuple(name for name in RESULT if name.endswith(("_base64", "_head_bytes")))
"""Those of them that are not always there."""


def window(result: CommandResult, offset: int, *, growing: bool) -> dict[str, Any]:
    """Return the output from `offset` on, as much as one answer holds.

    Args:
        result: All that is held of a command whose two streams are one.
        offset: Counted over everything that it ever wrote.
        growing: Whether more may come, so that half a character at the end can wait.
    """
    data, head_bytes = result.stdout_bytes, result.stdout_head_bytes
    gap_bytes = result.stdout_omitted_bytes
    total_bytes = len(data) + gap_bytes
    start = min(offset, total_bytes)
    if gap_bytes and head_bytes <= start < head_bytes + gap_bytes:
        start = head_bytes + gap_bytes
        start += _cut_at_start(data[head_bytes:])
    index = start if not gap_bytes or start < head_bytes else start - gap_bytes
    until = head_bytes if gap_bytes and index < head_bytes else len(data)
    part = data[index : min(index + OUTPUT_BYTES, until)]
    rest_follows = index + len(part) < until or (growing and until == len(data))
    whole = part[: len(part) - _cut_at_end(part)]
    if rest_follows and _is_text(whole):
        part = whole
    fields: dict[str, Any] = {
        "output": part.decode(errors="replace"),
        "offset": start,
        "next_offset": start + len(part),
        "total_bytes": total_bytes,
        "omitted_bytes": max(0, start - offset),
    }
    return fields | _exact("output_base64", part)


def _exact(name: str, data: bytes) -> dict[str, Any]:
    return {} if _is_text(data) else {name: b64encode(data)}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cut_at_end(data: bytes) -> int:
    """Return how many of the last bytes begin a character that is not whole."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = next((size for first, last, size in _LEADS if first <= byte <= last), 1)
        return back if back < length else 0
    return 0


def _cut_at_start(data: bytes) -> int:
    """Return how many of the first bytes end a character whose beginning is gone."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
