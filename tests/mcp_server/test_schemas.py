"""What the server tells about its tools, and that results and arguments keep to it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from mcp.server.mcpserver.tools import Tool
from mcp.shared.tool_name_validation import validate_tool_name

from agent_sandbox.errors import TABLE, AgentSandboxError, ArgumentError
from agent_sandbox.mcp_server.arguments import parse
from agent_sandbox.mcp_server.tool import SandboxTool
from agent_sandbox.mcp_server.tools import ALL_TOOLS
from agent_sandbox.toolkit.failures import failure
from agent_sandbox.uploads.tools import UploadTool

BY_NAME = {tool.name: tool for tool in ALL_TOOLS}
ADOPTING = {
    *("upload_file", "download_file", "read_file", "write_file", "list_files"),
    *("place_upload", "create_download_url", "fetch_url", "run_command", "start_background_task"),
}
READ_ONLY = {
    *("list_sandboxes", "get_sandbox", "get_background_task", "list_background_tasks"),
    "get_upload",
}
DESTRUCTIVE = {
    *("upload_file", "write_file", "kill_sandbox", "revoke_upload", "place_upload", "fetch_url"),
    *("run_command", "start_background_task", "stop_background_task"),
}
ONCE = {
    *("create_sandbox", "run_command", "start_background_task"),
    *("create_upload_url", "check_transfer", "create_download_url"),
}
"""Tools that do something else when they are called again."""

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "create_sandbox": [{}, {"ttl_seconds": 1}, {"ttl_seconds": 86400}],
    "list_sandboxes": [{}],
    "get_sandbox": [{"sandbox_id": "x"}],
    "set_sandbox_ttl": [{"sandbox_id": "x", "ttl_seconds": 5}],
    "kill_sandbox": [{"sandbox_id": "x" * 256}],
    "upload_file": [
        {"path": "/x", "content_base64": ""},
        {
            "path": "/x",
            "content_base64": "AP8=",
            "size_bytes": 0,
            "sha256": "a" * 64,
            "sandbox_id": "x",
        },
    ],
    "download_file": [{"path": "/x"}, {"path": "/x", "sandbox_id": "x"}],
    "read_file": [{"path": "/x"}],
    "write_file": [{"path": "/x", "content": ""}],
    "list_files": [{"path": "/"}],
    "run_command": [
        {"command": "true"},
        {"command": "x" * 32_768, "cwd": "/", "timeout_seconds": 3600, "sandbox_id": "x"},
    ],
    "start_background_task": [
        {"command": "true"},
        {"command": "true", "retain": False},
        {"command": "a\nb", "cwd": "/", "retain": True, "retain_seconds": 86400},
    ],
    "get_background_task": [{"task_id": "x"}, {"task_id": "x", "offset": 0}],
    "list_background_tasks": [{}],
    "stop_background_task": [{"task_id": "x" * 256}],
    "create_upload_url": [
        {"filename": "a.csv", "size_bytes": 0},
        {"filename": "a.csv", "size_bytes": 1 << 70, "sha256": "aA" * 32},
    ],
    "get_upload": [{"upload_id": "x"}, {"upload_id": "x", "wait_seconds": 50}],
    "revoke_upload": [{"upload_id": "x"}],
    "place_upload": [
        {"upload_id": "x", "path": "/x"},
        {"upload_id": "x", "path": "/x", "sandbox_id": "x"},
    ],
    "check_transfer": [{}],
    "create_download_url": [{"path": "/x"}, {"path": "/x", "sandbox_id": "x"}],
    "fetch_url": [{"url": "https://example.com/x", "path": "/x", "sandbox_id": "x"}],
}

tools = pytest.mark.parametrize("tool", ALL_TOOLS, ids=lambda tool: tool.name)


def test_the_tools_are_those_of_the_contract() -> None:
    assert [tool.name for tool in ALL_TOOLS] == list(EXAMPLES)


@tools
def test_a_tool_says_what_it_is(tool: Tool) -> None:
    assert validate_tool_name(tool.name).is_valid
    assert tool.title
    assert len(tool.description) > 80
    assert tool.annotations is not None
    assert tool.annotations.title == tool.title
    assert tool.annotations.open_world_hint is (tool.name == "fetch_url")
    assert tool.annotations.read_only_hint is (tool.name in READ_ONLY)
    assert tool.annotations.destructive_hint is (tool.name in DESTRUCTIVE)
    assert tool.annotations.idempotent_hint is (tool.name not in ONCE)
    adopts = "Naming a sandbox_id makes this session its owner" in tool.description
    adopts |= "destroys a named sandbox at its end" in tool.description
    assert adopts is (tool.name in ADOPTING)
    if adopts:
        assert "finish all uses" in tool.description


@tools
def test_its_schemas_are_valid_and_closed(tool: Tool) -> None:
    for schema in (tool.parameters, tool.output_schema or {}):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    assert tool.parameters["additionalProperties"] is False
    assert [branch["additionalProperties"] for branch in (tool.output_schema or {})["oneOf"]] == [
        False,
        False,
    ]


@tools
def test_model_and_schema_agree_about_every_argument(tool: Tool) -> None:
    assert isinstance(tool, SandboxTool | UploadTool)
    fields = tool.arguments_type.model_fields
    assert set(fields) == set(tool.parameters["properties"])
    required = {name for name, field in fields.items() if field.is_required()}
    assert required == set(tool.parameters["required"])
    validator = jsonschema.Draft202012Validator(tool.parameters)
    for good in EXAMPLES[tool.name]:
        validator.validate(good)
        parse(tool.arguments_type, good)
        mutants = [{**good, "unknown": 1}, *({**good, name: None} for name in fields)]
        mutants += [{**good, name: [good.get(name)]} for name in fields]
        mutants += [{k: v for k, v in good.items() if k != name} for name in required]
        for mutant in mutants:
            assert not validator.is_valid(mutant)
            with pytest.raises(ArgumentError):
                parse(tool.arguments_type, mutant)


@tools
@pytest.mark.parametrize("error", TABLE, ids=lambda error: error.__name__)
def test_every_failure_fits_the_output_schema(tool: Tool, error: type[AgentSandboxError]) -> None:
    instance = error.__new__(error)
    for sandbox_id in (None, "x"):
        fields = failure(instance, sandbox_id)
        jsonschema.validate(fields, tool.output_schema or {})


@tools
def test_half_a_success_fits_no_output_schema(tool: Tool) -> None:
    validator = jsonschema.Draft202012Validator(tool.output_schema or {})
    for wrong in ({}, {"success": True}, {"success": False}, {"error": "x"}):
        assert not validator.is_valid(wrong)
