"""What is left out of an answer comes back into it, and nothing else does."""

from __future__ import annotations

import json

from mcp_types import JSONRPCResponse
from starlette.requests import Request

from agent_sandbox.mcp_server.splice import (
    SMALLEST_CHARS,
    LineRequest,
    Spliced,
    offer,
    spliced_of,
)
from agent_sandbox.mcp_server.stdio import to_line

LARGE = "QUJD" * SMALLEST_CHARS
OTHER = "QUJE" * SMALLEST_CHARS


def test_a_large_text_is_left_out_and_filled_in_wherever_its_token_stands() -> None:
    spliced = Spliced()
    one, two = spliced.leave_out(LARGE), spliced.leave_out(OTHER)
    assert len(one) == len(two) == 64 != len({one, two})
    nested = json.dumps({"text": json.dumps({"content_base64": one}), "x": two}).encode()
    filled = json.loads(spliced.fill(nested))
    assert json.loads(filled["text"]) == {"content_base64": LARGE}
    assert filled["x"] == OTHER
    assert spliced.texts == {}


def test_a_small_text_stays() -> None:
    spliced = Spliced()
    assert spliced.leave_out("QUJD") == "QUJD"
    assert spliced.fill(b"QUJD") == b"QUJD"


def test_a_line_is_filled_before_its_length_is_judged() -> None:
    spliced = Spliced()
    token = spliced.leave_out("A" * 9_000_000)
    long = JSONRPCResponse(jsonrpc="2.0", id=1, result={"x": token})
    assert json.loads(to_line(long, spliced))["error"]["code"] == -32603


def test_only_requests_of_our_transports_have_a_place_for_it() -> None:
    line = LineRequest()
    assert spliced_of(line) is line.spliced
    scope = {"type": "http", "headers": []}
    assert spliced_of(Request(scope)) is None
    assert offer(scope) is spliced_of(Request(scope))
    for other in (None, object(), "x"):
        assert spliced_of(other) is None
