"""A peer that asks for a stream and takes nothing of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.raw_http import RawClient, request
from tests.support.strict_http import serving

from agent_sandbox.http1 import StrictHTTPProtocol


def test_a_peer_that_takes_nothing_of_a_stream_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StrictHTTPProtocol, "stall_s", 0.05)
    over = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = {"type": "http.response.body", "body": bytes(1_000_000), "more_body": True}
        for _ in range(100):  # more than any buffer between them holds
            await send(body)
        assert (await receive())["type"] == "http.disconnect"
        over.set()

    with serving(app) as port, RawClient(port) as peer:
        peer.send(request("GET", "/"))
        assert over.wait(20)
