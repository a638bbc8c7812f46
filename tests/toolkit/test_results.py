"""Results for every protocol version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import CallToolResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from agent_sandbox.limits import MAX_FILE_BYTES, MAX_STDIO_LINE_BYTES
from agent_sandbox.toolkit.results import FIRST_STRUCTURED_VERSION, to_result

VERSIONS = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
FIELDS = {"success": True, "content_base64": "AP8=", "bytes_read": 2}


def shown(result: CallToolResult) -> dict[str, Any]:
    (block,) = result.content
    fields: dict[str, Any] = json.loads(block.text)  # type: ignore[union-attr]
    return fields


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bytes_stand_in_exactly_one_place(version: str) -> None:
    result = to_result(FIELDS, version)
    if version < FIRST_STRUCTURED_VERSION:
        assert result.structured_content is None
        assert shown(result) == FIELDS
    else:
        assert result.structured_content == FIELDS
        assert shown(result) == {"success": True, "bytes_read": 2}


def test_an_unknown_version_gets_everything_as_text() -> None:
    assert to_result(FIELDS, "1999-01-01").structured_content is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("character", ["\0", '"', "\\", "x", "\u202e", "\U0001f600"])
def test_the_largest_text_fits_into_a_line_however_it_is_escaped(
    version: str, character: str
) -> None:
    content = character * (MAX_FILE_BYTES // len(character.encode()))
    result = to_result({"success": True, "content": content}, version)
    line = result.model_dump_json(by_alias=True).encode()
    assert len(line) + 1000 <= MAX_STDIO_LINE_BYTES
    fields = result.structured_content or shown(result)
    assert fields["content"] == content


def test_a_text_that_is_not_repeated_says_where_it_is() -> None:
    result = to_result({"success": True, "content": "\0" * MAX_FILE_BYTES}, VERSIONS[-1])
    assert "structuredContent.content" in shown(result)["note"]
