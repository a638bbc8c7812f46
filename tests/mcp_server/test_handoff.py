"""What a server that has to end hands over reaches its successor whole, however much it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from tests.support.express import wait_until

from agent_sandbox.client.settings import Settings
from agent_sandbox.mcp_server.handoff import hand_off

SETTINGS = Settings(provider="express", api_url="http://127.0.0.1:9", api_key="key-canary")


class Successor:
    """Notes what the new process would be started with, and read."""

    def __init__(self, command: list[str], *, stdin: IO[bytes], **_: Any) -> None:
        self.command, self.order = command, json.loads(stdin.read())
        self.returncode: int | None = None
        Successor.last = self

    last: Successor


def test_an_order_of_any_length_is_whole_and_shows_no_credential_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Successor)
    doomed = {f"i{number:025}" for number in range(10_000)}
    hand_off(SETTINGS, doomed)
    assert set(Successor.last.order["sandbox_ids"]) == doomed
    assert Successor.last.order["settings"]["api_key"] == "key-canary"
    assert "key-canary" not in str(Successor.last.command)


def test_a_process_that_cannot_be_started_is_logged_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing")
    hand_off(SETTINGS, {"x"})
    assert "cannot be handed over (FileNotFoundError)" in caplog.text


def test_the_successor_has_a_session_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport os\n"
        f"open('{told}.new', 'w').write(f'{{os.getpid()}} {{os.getsid(0)}}')\n"
        f"os.rename('{told}.new', '{told}')\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    hand_off(SETTINGS, {"x"})
    wait_until(told.exists)
    pid, session = map(int, told.read_text().split())
    os.waitpid(pid, 0)
    assert session == pid  # what ends this process, or the terminal, does not end it
