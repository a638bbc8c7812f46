"""What Prometheus is told: counts by action, state and code, and never an id or a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from tests.support.raw_http import request
from tests.support.upload_parts import ME, Database, Sink, chunked
from tests.support.upload_server import running

from agent_sandbox.errors import UploadBodyError, UploadBusyError, UploadNameError
from agent_sandbox.uploads.metrics import UploadCollector, metrics_route
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State


def lines(collector: UploadCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    told = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in told if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


async def put(service: UploadService, body: bytes, sent: bytes) -> str:
    session, secret = await service.create(ME, "canary-name", len(body))
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    await service.receive(await service.claim(admitted), chunked(sent))
    return session.upload_id


async def test_changes_bytes_and_errors_are_counted(
    database: Database, service: UploadService
) -> None:
    collector = UploadCollector(service)
    placed = await put(service, b"hello", b"hello")
    await service.place(ME, placed, Sink(), "/canary-path")
    await put(service, b"kept", b"kept")
    with pytest.raises(UploadBodyError):
        await put(service, b"whole", b"hal")
    with pytest.raises(UploadNameError):
        await service.create(ME, "a/b", 1)
    await service.create(ME, "late", 1)
    told = lines(collector)
    assert told['agent_sandbox_upload_changes_total{action="create",state="pending"}'] == 4
    assert told['agent_sandbox_upload_changes_total{action="receive",state="stored"}'] == 2
    assert told['agent_sandbox_upload_changes_total{action="receive",state="failed"}'] == 1
    assert told['agent_sandbox_upload_changes_total{action="place",state="placed"}'] == 1
    assert told['agent_sandbox_upload_errors_total{code="E7013",operation="create"}'] == 1
    assert told['agent_sandbox_upload_bytes_total{direction="in"}'] == 5 + 4 + 3
    assert told['agent_sandbox_upload_bytes_total{direction="out"}'] == 5
    assert told["agent_sandbox_upload_bodies"] == 0
    assert not [name for name in told if "sessions" in name or "canary" in name or placed in name]
    await collector.refresh()
    told = lines(collector)
    states = {one: told[f'agent_sandbox_upload_sessions{{state="{one}"}}'] for one in State}
    assert {str(one): count for one, count in states.items() if count} == {
        "placed": 1, "stored": 1, "failed": 1, "pending": 1,
    }  # fmt: skip
    await database.advance(600_000)
    assert await service.states() == {
        State.PLACED: 1, State.STORED: 1, State.FAILED: 1, State.EXPIRED: 1,
    }  # fmt: skip


async def test_a_database_that_does_not_answer_leaves_out_its_numbers_only(
    service: UploadService, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy() -> dict[State, int]:
        raise UploadBusyError

    collector = UploadCollector(service)
    await collector.refresh()
    assert any("upload_sessions" in name for name in lines(collector))
    monkeypatch.setattr(database.store, "count_states", busy)
    await collector.refresh()
    told = lines(collector)
    assert not any("upload_sessions" in name for name in told)
    assert "agent_sandbox_upload_bodies" in told


def test_refusals_of_the_endpoint_are_counted_by_code(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        ticket = server.create(5)
        for data, status in (
            (request("PUT", ticket.path, "Content-Length: 5", body=b"hello"), 401),
            (request("PUT", ticket.path, "Authorization: no", "Content-Length: 0"), 404),
            (ticket.put(b"hello"), 200),
            (ticket.put(b"hello"), 409),
            (request("GET", "/downloads/no", "Authorization: no"), 404),
        ):
            assert server.send(data).status == status
        assert server.service.tally().errors == {
            ("put", "E7012"): 1,
            ("put", "E7002"): 1,
            ("put", "E7007"): 1,
            ("get", "E7002"): 1,
        }
        assert server.service.tally().bytes["in"] == 5


async def ask(app: Starlette, client: tuple[str, int] | None) -> tuple[int, bytes]:
    """GET the metrics as a caller from that address."""
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/metrics", "raw_path": b"/metrics",
        "query_string": b"", "headers": [], "client": client, "scheme": "http",
        "server": ("127.0.0.1", 80), "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])


async def test_the_route_tells_this_machine_and_nobody_else(service: UploadService) -> None:
    await service.create(ME, "a", 1)
    app = Starlette(routes=[metrics_route(service)])
    for near in (("127.0.0.1", 9), ("::1", 9), None):
        status, body = await ask(app, near)
        assert status == 200
        assert b'agent_sandbox_upload_sessions{state="pending"} 1.0' in body
    for far in (("192.0.2.7", 9), ("testclient", 9)):
        status, body = await ask(app, far)
        assert (status, b"agent_sandbox" in body) == (404, False)
    status, _ = await ask(
        Starlette(routes=[metrics_route(service, allowed=lambda _: True)]), ("192.0.2.7", 9)
    )
    assert status == 200
