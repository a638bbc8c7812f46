"""Retained tasks outlive their session, and even the server, until they end; nothing else does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from mcp import Client
from tests.mcp_server.conftest import Connect
from tests.support.express import Service, wait_until
from tests.support.mcp_servers import (
    ERAS,
    WAIT_S,
    connected,
    environment,
    http_server,
    initialize,
    stdio_command,
    tool_call,
)
from tests.support.tasks import NO_SUCH_TASK, elsewhere, entry, fields_of, listed, until

from agent_sandbox.errors import TaskQuotaError
from agent_sandbox.express.state import default_state_dir
from agent_sandbox.mcp_server.auth.tokens import make_token

WAITS = "echo begun; until [ -e /tmp/go ]; do sleep 0.05; done"


def alive(express: Service) -> set[str]:
    return {box["sandboxID"] for box in express.http.get("/v2/sandboxes").json()}


async def eventually(express: Service, *sandbox_ids: str) -> None:
    """Wait until these sandboxes are alive and no others."""
    await asyncio.to_thread(wait_until, lambda: alive(express) == set(sandbox_ids))


def go(root: Path) -> None:
    """Let the task that waits for it end, from outside."""
    (root / "tmp" / "go").touch()


@asynccontextmanager
async def any_server(express: Service, transport: str) -> AsyncIterator[str | list[str]]:
    """Yield how to reach an MCP server; over STDIO each connection is a server of its own."""
    if transport == "stdio":
        yield stdio_command()
        return
    with http_server(env=elsewhere(express)) as server:
        yield server.url


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_retained_task_outlives_its_session_and_is_found_by_the_next(
    express: Service, transport: str
) -> None:
    env = elsewhere(express)
    async with any_server(express, transport) as target:
        async with connected(target, ERAS[0], env=env) as first:
            kept = await fields_of(
                first, "start_background_task", command=WAITS, retain=True, retain_seconds=900
            )
            assert (kept["retained"], kept["retain_seconds"]) == (True, 900)
            plain = await fields_of(first, "create_sandbox")
            await fields_of(
                first,
                "start_background_task",
                command="sleep 1000",
                sandbox_id=plain["sandbox_id"],
            )
        await eventually(express, kept["sandbox_id"])
        async with connected(target, ERAS[0], env=env) as second:
            task_id = kept["task_id"]
            (found,) = await listed(second)
            assert (found["task_id"], found["state"], found["retained"]) == (
                task_id,
                "running",
                True,
            )
            assert (await until(second, task_id, output="begun\n"))["state"] == "running"
            (seen,) = (await fields_of(second, "list_sandboxes"))["sandboxes"]
            assert seen["is_owned"] is False, "looking makes nobody an owner"
            (root,) = express.state_dir.glob(f"instances/*/{kept['sandbox_id']}/root")
            go(root)
            await eventually(express)
            for tool in ("get_background_task", "stop_background_task"):
                assert await fields_of(second, tool, task_id=task_id) == NO_SUCH_TASK


async def test_a_session_that_adopts_the_sandbox_keeps_it_after_the_task(express: Service) -> None:
    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[0]) as first:
            kept = await fields_of(first, "start_background_task", command=WAITS, retain=True)
        async with connected(server.url, ERAS[0]) as second:
            await fields_of(
                second,
                "write_file",
                path="/tmp/go",
                content="",
                sandbox_id=kept["sandbox_id"],
            )
            ended = await until(second, kept["task_id"], state="ended")
            assert ended["exit_code"] == 0
            assert alive(express) == {kept["sandbox_id"]}
        await eventually(express)


async def test_stopping_the_task_of_an_ended_session_ends_its_sandbox(express: Service) -> None:
    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[0]) as first:
            kept = await fields_of(
                first, "start_background_task", command="sleep 1000", retain=True
            )
        await eventually(express, kept["sandbox_id"])
        async with connected(server.url, ERAS[0]) as second:
            stopped = await fields_of(second, "stop_background_task", task_id=kept["task_id"])
            assert (stopped["stopped"], stopped["sandbox_id"]) == (True, kept["sandbox_id"])
            await eventually(express)


async def test_kill_sandbox_wins_and_so_does_the_end_of_its_time(connect: Connect) -> None:
    async with connect() as client:
        kept = await fields_of(client, "start_background_task", command="sleep 1000", retain=True)
        assert (await fields_of(client, "kill_sandbox", sandbox_id=kept["sandbox_id"]))["success"]
        assert await fields_of(client, "get_background_task", task_id=kept["task_id"]) == (
            NO_SUCH_TASK
        )
        short = await fields_of(client, "create_sandbox", ttl_seconds=1)
        kept = await fields_of(
            client,
            "start_background_task",
            command="sleep 1000",
            retain=True,
            retain_seconds=2,
            sandbox_id=short["sandbox_id"],
        )
        with anyio.fail_after(WAIT_S):
            while kept["sandbox_id"] in str(await fields_of(client, "list_sandboxes")):
                pass  # a look renews nothing, and there is nothing else that tells
        assert kept["task_id"] not in str(await listed(client))


async def test_one_principal_has_ten_retained_tasks_at_most(express: Service) -> None:
    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[0]) as one, connected(server.url, ERAS[0]) as two:

            async def start(client: Client, retain: bool = True) -> dict[str, object]:
                return await fields_of(
                    client, "start_background_task", command="sleep 1000", retain=retain
                )

            begun = await asyncio.gather(*(start(client) for client in (one, two) * 6))
            refused = [fields for fields in begun if "error" in fields]
            assert [fields["error"] for fields in refused] == [TaskQuotaError.text] * 2
            assert {fields["error_category"] for fields in refused} == {"permission_denied"}
            assert (await start(one, retain=False))["success"]
            task_id = next(task["task_id"] for task in await listed(one) if task["retained"])
            await fields_of(one, "stop_background_task", task_id=task_id)
            assert (await start(two))["success"]


async def test_another_principals_tasks_look_like_none(express: Service) -> None:
    mine, other = make_token("mine"), make_token("other")
    env = elsewhere(express) | {"AGENT_SANDBOX_TOKENS": f"{mine.line}\n{other.line}"}
    with http_server(env=env) as server:
        async with connected(server.url, ERAS[0], token=mine.token) as first:
            kept = await fields_of(
                first, "start_background_task", command="sleep 1000", retain=True
            )
        task_id = kept["task_id"]
        for era in ERAS:
            async with connected(server.url, era, token=other.token) as stranger:
                assert await listed(stranger) == []
                for tool in ("get_background_task", "stop_background_task"):
                    assert await fields_of(stranger, tool, task_id=task_id) == NO_SUCH_TASK
            async with connected(server.url, era, token=mine.token) as again:
                assert entry(await listed(again), task_id)["state"] == "running"


async def started_embedded(process: asyncio.subprocess.Process) -> list[str]:
    """Open a session and start a task of each kind; return their sandboxes."""
    assert process.stdin is not None
    assert process.stdout is not None
    commands = {"retain": True, "command": WAITS}, {"command": "sleep 1000"}
    process.stdin.write(initialize(0) + b"\n" + tool_call(1, "create_sandbox") + b"\n")
    await process.stdout.readline()
    made = await process.stdout.readline()
    process.stdin.write(tool_call(2, "start_background_task", **commands[0]) + b"\n")
    await process.stdout.readline()
    process.stdin.write(tool_call(3, "create_sandbox") + b"\n")
    other = await process.stdout.readline()
    found = [line.split(b'"sandbox_id":"')[1].split(b'"')[0].decode() for line in (made, other)]
    more = tool_call(4, "start_background_task", sandbox_id=found[1], **commands[1])
    process.stdin.write(more + b"\n")
    assert b"task_id" in await process.stdout.readline()
    return found


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGKILL"])
async def test_the_embedded_service_outlives_its_server_until_the_task_ends_and_leaves_nothing(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    instances = default_state_dir() / "instances"
    process = await asyncio.create_subprocess_exec(
        *stdio_command(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    kept, plain = await started_embedded(process)
    below = psutil.Process(process.pid).children(recursive=True)
    (service,) = psutil.Process(process.pid).children()
    (kept_root,) = instances.glob(f"*/{kept}/root")
    if how == "end of input":
        assert process.stdin is not None
        process.stdin.close()
    else:
        process.send_signal(signal.Signals[how])
    await asyncio.wait_for(process.wait(), WAIT_S)
    await asyncio.to_thread(wait_until, lambda: not list(instances.glob(f"*/{plain}")))
    assert service.is_running()
    assert kept_root.is_dir()
    go(kept_root)
    _, left = await asyncio.to_thread(psutil.wait_procs, below, 20)
    assert left == []
    assert not list(instances.glob(f"*/{kept}"))
