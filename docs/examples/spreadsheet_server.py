"""A whole MCP server: it receives a spreadsheet past the model and counts its rows."""

import csv
import sys
from collections.abc import AsyncIterator

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer

from agent_sandbox.uploads.http import upload_routes, uvicorn_settings
from agent_sandbox.uploads.local import local_uploads
from agent_sandbox.uploads.models import Principal, StoredUpload
from agent_sandbox.uploads.repeatable import Repeatable
from agent_sandbox.uploads.tools import upload_tools

PORT = int(sys.argv[1]) if sys.argv[1:] else 8000
URL, CSV = f"http://127.0.0.1:{PORT}", frozenset({".csv"})
ME = Principal("me", "my-workspace")  # for several users: a function of the call's context


async def count(upload: StoredUpload, data: AsyncIterator[bytes]) -> dict[str, int]:
    text = b"".join([chunk async for chunk in data]).decode("utf-8-sig", "replace")
    return {"rows": sum(1 for _ in csv.reader(text.splitlines(keepends=True)))}


async def charge(upload: StoredUpload, principal: Principal) -> None:
    print(f"charge {principal.workspace} once for {upload.upload_id}", flush=True)


async def main() -> None:
    async with local_uploads(URL, "uploads", charge=charge, allowed_extensions=CSV) as service:
        use = Repeatable(count)  # a failed attempt did no harm: the next call counts again
        tools = upload_tools(service, principal=ME, placer=use, use_tool="count_rows")
        app = MCPServer("rows", tools=[*tools]).streamable_http_app()
        app.router.routes.extend(upload_routes(service))
        settings = uvicorn.Config(app, port=PORT, **uvicorn_settings(service.config))
        await uvicorn.Server(settings).serve()


anyio.run(main)
