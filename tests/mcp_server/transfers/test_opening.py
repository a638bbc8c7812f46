"""The service of uploads as the server opens and ends it, also where that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from agent_sandbox.mcp_server.transfers import uploads
from agent_sandbox.mcp_server.transfers.settings import TransferSettings
from agent_sandbox.mcp_server.transfers.uploads import Uploads

WAIT_S = 30.0


async def test_an_end_that_fails_is_logged_and_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def full_disk(_path: str) -> Iterator[None]:
        yield
        raise OSError("canary-text")

    monkeypatch.setattr(uploads, "audit_file", full_disk)
    settings = TransferSettings(directory=str(tmp_path), audit_file="audit")
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as server:
            opened = Uploads(settings, server)
            await opened.service()
            await opened.end(WAIT_S)
            assert not server.cancel_scope.cancel_called
    assert "the end of uploads: OSError" in caplog.text
    assert "canary-text" not in caplog.text
