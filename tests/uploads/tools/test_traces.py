"""Whoever traces an MCP server finds names of tools in its spans, and no secret."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.shared import _otel
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags
from tests.support.upload_parts import ME, Sink, chunked, config

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore
from agent_sandbox.uploads.tools import upload_tools

BODY = b"canary-bytes"


class Recording(NonRecordingSpan):
    """A span that keeps whatever it is told."""

    def __init__(self, told: list[str]) -> None:
        super().__init__(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1)))
        self._told = told

    def is_recording(self) -> bool:
        return True

    def set_attributes(self, attributes: Any) -> None:
        self._told.append(repr(attributes))

    def set_attribute(self, key: str, value: Any) -> None:
        self._told.append(f"{key}={value!r}")

    def add_event(self, name: str, attributes: Any = None, timestamp: Any = None) -> None:
        self._told.append(f"{name} {attributes!r}")

    def set_status(self, status: Any, description: str | None = None) -> None:
        self._told.append(f"{status} {description}")

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self._told.append(repr(exception))


class Tracer:
    """Makes spans that write into one list."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @contextmanager
    def start_as_current_span(
        self, name: str, *, attributes: Any = None, **_: Any
    ) -> Iterator[Span]:
        self.told.append(f"{name} {attributes!r}")
        yield Recording(self.told)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[UploadService]:
    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    yield UploadService(config(), store, LocalBlobs(tmp_path / "blobs"))
    await store.close()


async def test_no_span_holds_a_secret_a_path_or_a_byte(
    service: UploadService, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = Tracer()
    monkeypatch.setattr(_otel, "_tracer", tracer)
    tools = upload_tools(service, principal=ME, placer=Sink())
    async with Client(MCPServer("traced", tools=[*tools])) as client:
        made = await client.call_tool(
            "create_upload_url", {"filename": "canary-name.csv", "size_bytes": len(BODY)}
        )
        given: dict[str, Any] = made.structured_content or {}
        upload_id, secret = given["upload_id"], given["headers"]["Authorization"]
        session = await service.authorise(upload_id, f"/uploads/{upload_id}", secret)
        await service.receive(await service.claim(session), chunked(BODY))
        for name, arguments in (
            ("place_upload", {"upload_id": upload_id}),
            ("get_upload", {"upload_id": secret}),
            ("get_upload", {"upload_id": upload_id, "canary-argument": secret}),
            ("revoke_upload", {"upload_id": upload_id}),
            ("create_upload_url", {"filename": secret, "size_bytes": -1}),
        ):
            await client.call_tool(name, arguments)
    told = "\n".join(tracer.told)
    assert "create_upload_url" in told
    assert "place_upload" in told
    assert secret not in told
    assert "canary" not in told
