"""Servers and clients for the tests of this folder; a server is shared where a test allows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest
from mcp import Client
from mcp_types import CallToolResult
from tests.support.express import Service, served
from tests.support.mcp_servers import (
    ERAS,
    TRANSPORTS,
    HttpServer,
    connected,
    http_server,
    stdio_command,
)


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package", params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package")
def shared_http() -> Iterator[HttpServer]:
    """One HTTP server with its embedded sandbox service."""
    with http_server() as server:
        yield server


class Connect(Protocol):
    def __call__(self, **more: Any) -> AbstractAsyncContextManager[Client]: ...


@pytest.fixture(scope="package")
def connect(transport: str, era: str, shared_http: HttpServer) -> Connect:
    """Open a new session on the transport and in the era of the test."""
    target = shared_http.url if transport == "http" else stdio_command()

    def open_session(**more: Any) -> AbstractAsyncContextManager[Client]:
        return connected(target, era, **more)

    return open_session


class Caller:
    """A session, with one sandbox in it that every call names.

    Where the connection has a scope this is its default; where it has none the sandbox lives on
    after the session, so it is killed at the end.
    """

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self.sandbox_id = sandbox_id

    async def __call__(self, tool: str, **arguments: Any) -> CallToolResult:
        return await self.client.call_tool(tool, {"sandbox_id": self.sandbox_id, **arguments})

    async def fields(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the fields of a success."""
        result = await self(tool, **arguments)
        assert not result.is_error, result
        assert isinstance(result.structured_content, dict)
        return result.structured_content

    async def failure(self, tool: str, **arguments: Any) -> str:
        """Return the category of a failure."""
        result = await self(tool, **arguments)
        assert result.is_error, result
        assert isinstance(result.structured_content, dict)
        return str(result.structured_content["error_category"])


@pytest.fixture(scope="package")
async def call(connect: Connect) -> AsyncIterator[Caller]:
    """One session for all the tests that only use files."""
    async with connect() as client:
        made = await client.call_tool("create_sandbox", {})
        assert made.structured_content is not None
        caller = Caller(client, made.structured_content["sandbox_id"])
        yield caller
        await caller("kill_sandbox")


@pytest.fixture
def express(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A sandbox service on a port, apart from every MCP server."""
    with served(tmp_path_factory.mktemp("express")) as service:
        yield service
