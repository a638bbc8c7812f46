"""No log holds a secret, a path, a session id or content, at any level."""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import tempfile
from collections.abc import Iterator
from typing import Any

import mcp.server.streamable_http_manager  # its loggers are part of what is looked at
import pytest
from mcp import Client
from tests.support.express import Service
from tests.support.mcp_servers import ERAS, RawHttp, connected, http_server, stdio_command

from agent_sandbox.mcp_server import McpConfig, build_server, logs
from agent_sandbox.mcp_server.logs import SDK_LOGGERS, LoopErrors, log, log_unexpected
from agent_sandbox.mcp_server.tools import binary

CANARY = "canary-7d1f"


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Everything that reaches the root logger at DEBUG."""
    seen: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    root, collector = logging.getLogger(), Collector()
    level = root.level
    root.addHandler(collector)
    root.setLevel(logging.DEBUG)
    yield seen
    root.removeHandler(collector)
    root.setLevel(level)


def written(records: list[logging.LogRecord]) -> str:
    formatter = logging.Formatter("%(name)s %(levelname)s %(message)s %(pathname)s")
    return "\n".join(formatter.format(record) + repr(record.args) for record in records)


def test_building_a_server_configures_no_root_logger_and_silences_the_sdk() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    build_server()
    assert (list(root.handlers), root.level) == before
    for name in SDK_LOGGERS:
        assert logging.getLogger(name).level == logging.WARNING
        assert not logging.getLogger(name).propagate


def test_a_record_of_a_library_keeps_its_place_and_loses_its_text(
    records: list[logging.LogRecord],
) -> None:
    build_server()
    logger = logging.getLogger(mcp.server.streamable_http_manager.__name__)
    logger.info("Created new transport with session ID: %s", CANARY)
    logger.warning("Invalid Host header: %s", CANARY)
    try:
        raise RuntimeError(CANARY)
    except RuntimeError:
        logger.exception("Session %s crashed", CANARY)
    text = written(records)
    assert CANARY not in text
    assert "mcp.server.streamable_http_manager reported something at line" in text
    assert "RuntimeError" in text
    # Ours alone: what other tests left may report itself at any time, as asyncio does.
    assert len([record for record in records if record.name == log.name]) == 2


def test_an_unexpected_error_is_logged_without_its_text(records: list[logging.LogRecord]) -> None:
    try:
        raise RuntimeError(CANARY)
    except RuntimeError as error:
        log_unexpected("a test", error)
    assert CANARY not in written(records)
    assert "RuntimeError at" in written(records)


async def test_what_nobody_awaited_is_logged_without_its_text(
    records: list[logging.LogRecord],
) -> None:
    loop, handle = asyncio.get_running_loop(), LoopErrors()
    for error in (RuntimeError(CANARY), asyncio.InvalidStateError(CANARY), None):
        handle(loop, {"message": CANARY, "exception": error, "handle": CANARY})
    assert CANARY not in written(records)
    assert len([record for record in records if record.name != "asyncio"]) == 2
    assert "RuntimeError" in written(records)


async def test_a_flood_of_connections_floods_no_log(
    records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, handle = asyncio.get_running_loop(), LoopErrors()
    for _ in range(1_000):
        handle(loop, {"message": CANARY, "exception": OSError(errno.EMFILE, CANARY)})
    monkeypatch.setattr(logs, "SCARCE_PAUSE_S", 0.0)
    handle(loop, {"message": CANARY, "exception": OSError(errno.EMFILE, CANARY)})
    assert len([record for record in records if record.name != "asyncio"]) == 2
    assert "EMFILE" in written(records)
    assert CANARY not in written(records)


def test_what_callers_make_a_library_repeat_floods_no_log(
    records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = logging.getLogger("library-of-a-test")
    monkeypatch.setattr(library, "handlers", [logs.RedactingHandler()])
    monkeypatch.setattr(library, "propagate", False)

    def report() -> None:
        library.warning("dropped %s", CANARY)

    for _ in range(1_000):
        report()
    library.warning("another place")
    assert len(records) == 2
    monkeypatch.setattr(logs, "SAME_PAUSE_S", 0.0)
    report()
    assert "and 999 times before; its text is withheld" in records[-1].getMessage()


async def test_a_tool_that_breaks_shows_its_secret_to_nobody(
    records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError(CANARY)

    upload = binary.TOOLS[0]
    monkeypatch.setattr(upload, "fn", broken)
    async with Client(build_server(McpConfig(provider="local"))) as client:
        result = await client.call_tool("upload_file", {"path": "/x", "content_base64": ""})
    assert result.structured_content == {
        "error": "An internal error stopped the operation.",
        "error_category": "file_transfer",
    }
    assert CANARY not in result.model_dump_json() + written(records)
    assert "upload_file" in written(records)


async def test_calls_leave_no_path_content_token_or_id_in_a_log_at_debug(
    records: list[logging.LogRecord], express: Service
) -> None:
    config = McpConfig(api_url=express.url, sandbox_url=express.url, api_key="key-" + CANARY)
    content = CANARY.encode()
    encoded = base64.b64encode(content).decode()
    async with Client(build_server(config)) as client:
        path = f"/tmp/path-{CANARY}"
        calls: list[tuple[str, dict[str, Any]]] = [
            ("upload_file", {"path": path, "content_base64": encoded}),
            ("download_file", {"path": path}),
            ("read_file", {"path": path + "/missing"}),
            ("write_file", {"path": path, "content": CANARY}),
            ("list_files", {"path": "/tmp"}),
            ("get_sandbox", {"sandbox_id": CANARY}),
            ("upload_file", {"path": path, "content_base64": encoded[:-1], "x": CANARY}),
        ]
        ids = []
        for tool, arguments in calls:
            result = await client.call_tool(tool, arguments)
            assert isinstance(result.structured_content, dict)
            ids.append(result.structured_content.get("sandbox_id", CANARY))
    text = written(records)
    for secret in (CANARY, encoded, content.hex(), *ids):
        assert secret not in text


async def test_a_server_process_prints_nothing_about_what_it_served() -> None:
    with http_server() as server:
        async with RawHttp.open(server.url) as raw:
            await raw.initialize()
            await raw.call(1, "write_file", path=f"/tmp/{CANARY}", content=CANARY)
            await raw.post(CANARY.encode())
            await raw.post(b"{}", host=CANARY)
            await raw.post(b"{}", origin=CANARY)
            await raw.post(b"{}", mcp_session_id=CANARY)
            await raw.http.delete(raw.url, headers=raw.session)
        assert server.end() == ""


async def test_the_log_says_why_the_embedded_service_did_not_start_and_the_result_does_not() -> (
    None
):
    env = {"AGENT_SANDBOX_LOG_LEVEL": "none"}
    with tempfile.TemporaryFile("w+") as log:
        async with connected(stdio_command(), ERAS[1], env=env, errors=log) as client:
            answer = await client.call_tool("create_sandbox", {})
        log.seek(0)
        assert "E5003" in (said := log.read())
    assert "The sandbox service: AGENT_SANDBOX_LOG_LEVEL is one of" in said
    assert answer.is_error
    assert "LOG_LEVEL" not in str(answer.content)
