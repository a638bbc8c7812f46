"""What the server says that it can do, and what it says to what it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mcp_server.conftest import Connect
from tests.support.mcp_servers import ERAS, HttpServer, RawHttp, request

META = {
    "io.modelcontextprotocol/protocolVersion": ERAS[1],
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def asked(raw: RawHttp, era: str, method: str, **params: Any) -> Any:
    """Return the answer to one request of an era over HTTP."""
    if era == ERAS[0]:
        await raw.initialize()
        return (await raw.post(request(1, method, **params))).json()
    headers = {"mcp-protocol-version": era, "mcp-method": method}
    return (await raw.post(request(1, method, **params, _meta=META), **headers)).json()


async def test_nothing_but_tools_is_announced(connect: Connect) -> None:
    async with connect() as client:
        announced = client.server_capabilities.model_dump(exclude_none=True)
        assert announced == {"tools": {"list_changed": False}}
        assert client.server_info is not None
        assert client.server_info.name == "agent-sandbox"


@pytest.mark.parametrize(
    "method",
    ["canary/x", "canary" * 1_000, "prompts/list", "resources/list", "resources/templates/list"],
)
@pytest.mark.parametrize("era", ERAS)
async def test_a_method_that_is_not_served_is_not_found_without_a_word_of_it(
    shared_http: HttpServer, era: str, method: str
) -> None:
    async with RawHttp.open(shared_http.url) as raw:
        answer = await asked(raw, era, method)
    assert answer["error"] == {"code": -32601, "message": "Method not found"}


async def test_a_stream_that_is_to_go_on_after_some_event_begins_anew(
    shared_http: HttpServer,
) -> None:
    async with RawHttp.open(shared_http.url) as raw:
        await raw.initialize()
        for last in ("1", "x" * 1_000, ""):
            headers = {**raw.session, "accept": "text/event-stream", "last-event-id": last}
            async with raw.http.stream("GET", raw.url, headers=headers) as answer:
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
