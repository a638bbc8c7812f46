"""What a result tells to do next: all of it, whatever came together in one call."""

from __future__ import annotations

from agent_sandbox.mcp_server.ownership import Use
from agent_sandbox.mcp_server.principals import ANONYMOUS
from agent_sandbox.mcp_server.scopes import Scope
from agent_sandbox.mcp_server.tool import NEXT_STEP, next_step


def test_advice_about_an_error_and_about_the_sandbox_that_was_made_are_both_told() -> None:
    made = Use(None, ANONYMOUS, "x", created=True)
    assert next_step(made, "Use another tool.") == {"next_step": f"Use another tool. {NEXT_STEP}"}
    assert next_step(made) == {"next_step": NEXT_STEP}
    owned = Use(Scope(ANONYMOUS), ANONYMOUS, "x", created=True)
    assert next_step(owned, "Use another tool.") == {"next_step": "Use another tool."}
    assert next_step(Use(None, ANONYMOUS, "x")) == {}
