"""What is sent for a command, and what is not: the calls themselves, without a service."""

from __future__ import annotations

from typing import Any

import pytest

from agent_sandbox.client._calls import Call
from agent_sandbox.client.operations import commands
from agent_sandbox.wire import headers, process


@pytest.mark.parametrize(
    ("timeout_s", "sent"), [(0.0001, "1"), (0.4, "400"), (1, "1000"), (None, None)]
)
def test_however_short_a_time_is_it_is_not_none(timeout_s: float | None, sent: str | None) -> None:
    call = commands.run("true", None, None, timeout_s, live=False, max_output_bytes=0)
    assert call.headers.get(headers.CONNECT_TIMEOUT_MS) == sent


def test_long_input_is_sent_in_order_in_pieces_that_a_service_accepts() -> None:
    data = bytes(range(256)) * (3 * process.MAX_INPUT_BYTES // 256)
    calls: list[Call[Any]] = list(commands.send_stdin(7, data, terminal=False))
    bodies = [call.content for call in calls if isinstance(call.content, bytes)]
    assert len(bodies) == len(calls)
    assert all(len(body) <= process.MAX_INPUT_BYTES for body in bodies)
    pieces = [process.SendInputRequest.model_validate_json(body).input for body in bodies]
    assert b"".join(piece.stdin or b"" for piece in pieces if piece) == data
