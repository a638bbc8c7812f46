"""The parts of the MCP SDK that we use though they are private, or behave in a way we rely on."""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

from mcp.server import connection, runner
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.session import ServerSession
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared import jsonrpc_dispatcher
from mcp.shared.message import ServerMessageMetadata

from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.principals import Principal


def test_the_minor_version_is_the_one_that_was_read() -> None:
    assert version("mcp").split(".")[:2] == ["2", "3"]


def test_a_session_has_its_connection() -> None:
    here = connection.Connection.from_envelope("2026-07-28", None, None)
    session = ServerSession(cast("Any", None), here)
    assert _sdk.connection_of(cast("Any", SimpleNamespace(session=session))) is here


def test_a_connection_has_a_place_for_state_and_an_exit_stack() -> None:
    assert {
        "state",
        "exit_stack",
        "protocol_version",
    } <= connection.Connection.__annotations__.keys()
    assert "exit_stack.aclose" in inspect.getsource(runner.aclose_shielded)


async def test_the_session_manager_knows_whose_each_session_is_and_can_end_one() -> None:
    with _sdk.root_logger_untouched():
        server = MCPServer[None]("probe")
    manager = StreamableHTTPSessionManager(_sdk.lowlevel_server(server))
    user = AuthenticatedUser(
        AccessToken(token="", client_id="c", scopes=[], subject="s", claims={"iss": "i"})
    )
    transport = manager._admit_session(authorization_context(user))
    assert transport is not None
    ((session_id, owner),) = _sdk.owners_of_sessions(manager).items()
    assert owner == Principal("c", "i", "s") == Principal.of_token(user.access_token)
    await _sdk.end_session(manager, session_id)
    assert transport.is_terminated
    assert _sdk.owners_of_sessions(manager) == {}
    await _sdk.end_session(manager, session_id)  # once more is nothing


def test_a_server_has_a_low_level_server() -> None:
    with _sdk.root_logger_untouched():
        server = MCPServer[None]("probe")
    assert _sdk.lowlevel_server(server).name == "probe"


def test_a_server_has_handlers_that_can_be_taken_away_and_a_list_of_middleware() -> None:
    with _sdk.root_logger_untouched():
        server = MCPServer[None]("probe")
    low = _sdk.lowlevel_server(server)
    announced = set(low.get_capabilities().model_dump(exclude_none=True))
    assert announced == {"prompts", "resources", "tools"}
    before = len(low.middleware)
    _sdk.serve_tools_alone(server)
    assert set(low.get_capabilities().model_dump(exclude_none=True)) == {"tools"}
    assert len(low.middleware) == before + 1


def test_constructing_leaves_the_root_logger_as_it_is() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with _sdk.root_logger_untouched():
        MCPServer[None]("probe")
    assert (list(root.handlers), root.level) == before


def test_a_tool_runs_by_a_method_that_can_be_replaced() -> None:
    assert list(inspect.signature(Tool.run).parameters) == [
        "self",
        "arguments",
        "context",
        "convert_result",
    ]


def test_a_request_that_ends_unanswered_tells_its_transport() -> None:
    assert "on_request_unanswered" in ServerMessageMetadata.__dataclass_fields__
    assert "on_request_unanswered" in inspect.getsource(jsonrpc_dispatcher.JSONRPCDispatcher)


def test_the_session_manager_has_an_application_to_wrap() -> None:
    assert "self.asgi_app" in inspect.getsource(StreamableHTTPSessionManager.__init__)
