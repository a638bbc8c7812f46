"""Every argument of every tool, with every kind of value that it is not."""

from __future__ import annotations

from typing import Any

from tests.support.mcp_servers import HttpServer, RawHttp, http_server, request

PLAUSIBLE: dict[str, Any] = {
    "path": "/tmp/x",
    "content_base64": "AP8=",
    "ttl_seconds": 10,
    "size_bytes": 2,
    "url": "https://example.com/x",
}
WRONG: dict[str, list[Any]] = {
    "string": [None, True, 5, 1.5, [], {}, ["/tmp/x"], {"a": 1}, 2**70],
    "integer": [None, "5", "", True, 1.5, 1e300, [], {}, -(2**70)],
    "boolean": [None, "true", "", 0, 1, 1.0, [], {}],
}


async def test_a_value_of_another_type_is_invalid_input_wherever_it_stands() -> None:
    with http_server() as server:
        async with RawHttp.open(server.url) as raw:
            await raw.initialize()
            tools = (await raw.post(request(1, "tools/list"))).json()["result"]["tools"]
            tried = 0
            for tool in tools:
                schema = tool["inputSchema"]
                needed = {name: PLAUSIBLE.get(name, "x") for name in schema.get("required", [])}
                for name, what in schema["properties"].items():
                    for value in WRONG[what["type"]]:
                        answer = await raw.call(2, tool["name"], **{**needed, name: value})
                        fields = answer["result"]["structuredContent"]
                        told = (tool["name"], name, value, fields)
                        assert fields.get("error_category") == "invalid_input", told
                        tried += 1
            assert tried > 300
            listed = await raw.call(3, "list_sandboxes")
            assert listed["result"]["structuredContent"]["sandboxes"] == []  # none was looked for
        assert server.end() == ""


async def test_arguments_beyond_those_of_a_tool_are_invalid_input(shared_http: HttpServer) -> None:
    async with RawHttp.open(shared_http.url) as raw:
        await raw.initialize()
        for tool in (await raw.post(request(1, "tools/list"))).json()["result"]["tools"]:
            schema = tool["inputSchema"]
            needed = {name: PLAUSIBLE.get(name, "x") for name in schema.get("required", [])}
            for name in ("canary", "", "__class__", "Path", "_meta"):
                answer = await raw.call(2, tool["name"], **{**needed, name: "canary"})
                fields = answer["result"]["structuredContent"]
                assert fields.get("error_category") == "invalid_input", (tool["name"], name, fields)
                assert "canary" not in str(fields)
