"""A server that stops in the middle of a PUT tells its sender the truth about the attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.raw_http import TIMEOUT_S, RawClient
from tests.support.upload_server import UploadServer

from agent_sandbox.errors import UploadBusyError
from agent_sandbox.uploads.blobs.local import LocalWriter
from agent_sandbox.uploads.store.sqlite import SqliteStore


class Gate:
    """Holds a method of a class until the test lets it go."""

    def __init__(self, patch: pytest.MonkeyPatch, cls: type, name: str) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        original = getattr(cls, name)

        async def held(this: Any, *args: Any, **more: Any) -> Any:
            self.entered.set()
            await asyncio.to_thread(self.open.wait, TIMEOUT_S)
            return await original(this, *args, **more)

        patch.setattr(cls, name, held)


def stop(server: UploadServer) -> None:
    """Cancel what is under way, as a server does at its end."""

    async def cancel() -> None:
        for task in server._uvicorn.server_state.tasks:
            task.cancel()

    server.call(cancel)


def test_a_file_that_was_whole_by_then_is_confirmed(
    make_server: Callable[..., UploadServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    gate = Gate(monkeypatch, LocalWriter, "commit")
    ticket = server.create(5)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"hello"))
        assert gate.entered.wait(TIMEOUT_S)
        stop(server)
        gate.open.set()
        answer = client.answer()
    assert (answer.status, answer.json["state"]) == (200, "stored")
    assert server.state(ticket) == "stored"


def test_an_attempt_that_had_not_begun_is_not_used(
    make_server: Callable[..., UploadServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    ticket = server.create(5)
    with monkeypatch.context() as patch:
        gate = Gate(patch, SqliteStore, "read")
        with RawClient(server.port) as client:
            client.send(ticket.put(b"hello"))
            assert gate.entered.wait(TIMEOUT_S)
            stop(server)
            gate.open.set()
            answer = client.answer()
        assert answer.status == 503
        assert answer.json["code"] == UploadBusyError.code
        assert "state" not in answer.json  # the secret was not looked at
    assert server.send(ticket.put(b"hello")).status == 200


def test_a_database_that_is_away_by_then_leaves_the_outcome_unknown(
    make_server: Callable[..., UploadServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    ticket = server.create(5)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"", "Expect: 100-continue", length=5))
        assert client.answer().status == 100

        async def busy(*_args: Any, **_more: Any) -> None:
            raise UploadBusyError

        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "_run", busy)
            stop(server)
            answer = client.answer()
    assert (answer.status, answer.json["code"]) == (503, "E7011")
    server.call(lambda: server.service.recover(abandon_all=True))
    assert server.state(ticket) == "failed"


def test_a_body_that_is_refused_as_late_is_not_answered_twice(
    make_server: Callable[..., UploadServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(idle_deadline_s=0.2)
    gate = Gate(monkeypatch, LocalWriter, "abort")
    ticket = server.create(5)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"he", length=5))
        assert gate.entered.wait(TIMEOUT_S)
        stop(server)
        gate.open.set()
        assert client.answer().status == 408
        assert client.rest() == b""
    assert server.settled(ticket) == "failed"
