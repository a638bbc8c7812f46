"""`run_command`: what it returns, what bounds it, and what kills it."""

from __future__ import annotations

import base64
import sys
from typing import Any

import anyio
import pytest
from tests.mcp_server.conftest import Caller, Connect
from tests.support.express import Service
from tests.support.mcp_servers import ERAS, WAIT_S, connected, http_server

from agent_sandbox.errors import CommandTimeoutError, SandboxNotFoundError, SandboxOwnedError
from agent_sandbox.mcp_server.outputs import OUTPUT_BYTES


async def test_a_command_returns_its_status_and_both_streams(call: Caller) -> None:
    fields = await call.fields("run_command", command="echo out; echo err >&2; exit 3")
    assert fields == {
        "success": True,
        "exit_code": 3,
        "stdout": "out\n",
        "stdout_omitted_bytes": 0,
        "stderr": "err\n",
        "stderr_omitted_bytes": 0,
        "sandbox_id": call.sandbox_id,
    }


async def test_commands_and_file_tools_see_the_same_files(call: Caller) -> None:
    await call.fields("write_file", path="/tmp/dir/in", content="from the tool")
    fields = await call.fields("run_command", command="cat in; pwd; echo x > out", cwd="/tmp/dir")
    assert fields["stdout"] == "from the tool/tmp/dir\n"
    assert (await call.fields("read_file", path="/tmp/dir/out"))["content"] == "x\n"
    assert (await call.fields("run_command", command="pwd"))["stdout"] == "/home/user\n"


async def test_a_command_that_is_not_found_is_a_result_that_says_so(call: Caller) -> None:
    fields = await call.fields("run_command", command="no-such-command-here")
    assert fields["exit_code"] == 127
    assert "no-such-command-here: command not found" in fields["stderr"]


async def test_a_signal_is_a_negative_status(call: Caller) -> None:
    assert (await call.fields("run_command", command="kill -9 $$"))["exit_code"] == -9


@pytest.mark.parametrize(
    ("arguments", "category"),
    [
        ({"command": "true", "cwd": "/no/such/place"}, "not_found"),
        ({"command": "true", "cwd": "relative"}, "invalid_input"),
        ({"command": "true", "cwd": "/a/../b"}, "invalid_input"),
        ({"command": ""}, "invalid_input"),
        ({"command": "a\0b"}, "invalid_input"),
        ({"command": "x" * 32_769}, "invalid_input"),
        ({"command": ["true"]}, "invalid_input"),
        ({"command": "true", "timeout_seconds": 0}, "invalid_input"),
        ({"command": "true", "timeout_seconds": 3_601}, "invalid_input"),
        ({"command": "true", "timeout_seconds": 1.5}, "invalid_input"),
        ({"command": "true", "env": {}}, "invalid_input"),
        ({}, "invalid_input"),
    ],
)
async def test_bad_input_is_refused_by_its_category(
    call: Caller, arguments: dict[str, Any], category: str
) -> None:
    assert await call.failure("run_command", **arguments) == category


async def test_binary_output_is_returned_exactly(call: Caller) -> None:
    line = r"printf '\000\377\200text'; printf '\303\251' >&2"
    fields = await call.fields("run_command", command=line)
    assert base64.b64decode(fields["stdout_base64"]) == b"\0\xff\x80text"
    assert fields["stdout"] == "\0\ufffd\ufffdtext"
    assert fields["stderr"] == "\u00e9"
    assert "stderr_base64" not in fields


async def test_huge_output_is_bounded_and_says_what_is_left_out(call: Caller) -> None:
    line = "echo first; head -c 500M /dev/zero | tr '\\0' x; echo last"
    fields = await call.fields("run_command", command=line)
    assert fields["exit_code"] == 0
    assert fields["stdout"].startswith("first\nxxx")
    assert fields["stdout"].endswith("xxxlast\n")
    assert fields["stdout_omitted_bytes"] == 500 * 2**20 + 11 - OUTPUT_BYTES


async def test_what_a_command_leaves_behind_is_not_waited_for_and_lives_on(call: Caller) -> None:
    line = (
        "setsid sh -c 'echo $$ > /tmp/left; exec sleep 1000' & until [ -s /tmp/left ]; do :; done"
    )
    fields = await call.fields("run_command", command=f"{line}; echo gone", timeout_seconds=30)
    assert fields["stdout"] == "gone\n"
    alive = await call.fields("run_command", command="kill -9 $(cat /tmp/left)")
    assert alive["exit_code"] == 0


async def test_a_command_that_closes_its_output_is_waited_for(call: Caller) -> None:
    line = "exec >&- 2>&-; sleep 0.3; exit 4"
    assert (await call.fields("run_command", command=line))["exit_code"] == 4


async def test_a_timeout_kills_the_group_and_tells_what_was_written(call: Caller) -> None:
    result = await call(
        "run_command", command="sleep 54321 & echo begun; yes >&2", timeout_seconds=1
    )
    assert result.is_error
    fields = result.structured_content or {}
    assert (fields["error"], fields["error_category"]) == (CommandTimeoutError.text, "timeout")
    assert fields["stdout"] == "begun\n"
    assert fields["stderr"].startswith("y\ny\n")
    assert fields["sandbox_id"] == call.sandbox_id
    await until_none_runs(call, "sleep\t54321")


async def until_none_runs(call: Caller, words: str) -> None:
    """Wait until no process of the sandbox has these arguments."""
    pattern = words.replace("\t", "\0")
    with anyio.fail_after(WAIT_S):
        while True:
            found = await call.fields("run_command", command="cat /proc/[0-9]*/cmdline 2>/dev/null")
            if pattern not in found["stdout"]:
                return


async def test_a_cancelled_call_kills_its_process_group(connect: Connect, era: str) -> None:
    async with connect() as client:
        made = await client.call_tool("create_sandbox", {})
        assert made.structured_content is not None
        call = Caller(client, made.structured_content["sandbox_id"])
        line = "sleep 65432 & echo > /tmp/begun; wait"
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: call("run_command", command=line, timeout_seconds=600))
            with anyio.fail_after(WAIT_S):
                while (await call("read_file", path="/tmp/begun")).is_error:
                    pass
            group.cancel_scope.cancel()
        await until_none_runs(call, "sleep\t65432")
        await call("kill_sandbox")


@pytest.mark.parametrize("era", ERAS)
async def test_a_command_whose_sandbox_is_killed_is_not_run_again_in_another(era: str) -> None:
    with http_server() as server:
        async with connected(server.url, era) as client, anyio.create_task_group() as group:
            answers: list[Any] = []
            answered = anyio.Event()

            async def run() -> None:
                line = "echo > /tmp/begun; sleep 65433"
                arguments = {"command": line, "timeout_seconds": 600}
                answers.append(await client.call_tool("run_command", arguments))
                answered.set()

            group.start_soon(run)
            killed = None
            with anyio.fail_after(WAIT_S):
                while killed is None:
                    listed = await client.call_tool("list_sandboxes", {})
                    for one in (listed.structured_content or {})["sandboxes"]:
                        call = Caller(client, one["sandbox_id"])
                        if not (await call("read_file", path="/tmp/begun")).is_error:
                            await call("kill_sandbox")
                            killed = call.sandbox_id
                await answered.wait()
            fields = answers[0].structured_content
            assert fields["error_category"] == "sandbox_not_found"
            assert fields["sandbox_id"] == killed
            listed = await client.call_tool("list_sandboxes", {})
            assert listed.structured_content == {"success": True, "sandboxes": []}


async def test_a_default_that_is_gone_before_a_command_is_replaced(express: Service) -> None:
    env = {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}
    with http_server(env=env) as server:
        async with connected(server.url, ERAS[0]) as client:
            made = await client.call_tool("create_sandbox", {})
            for tool in ("run_command", "start_background_task"):
                assert made.structured_content is not None
                express.http.delete(f"/sandboxes/{made.structured_content['sandbox_id']}")
                made = await client.call_tool(tool, {"command": "true"})
                assert (made.structured_content or {})["sandbox_created"] is True


async def test_unknown_ended_and_foreign_sandboxes_are_refused(express: Service) -> None:
    env = {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}
    owned, ended = express.create(), express.create()
    ended.kill()
    with http_server(env=env) as server:
        async with connected(server.url, ERAS[0]) as one, connected(server.url, ERAS[0]) as two:
            call = Caller(one, owned.sandbox_id)
            await call.fields("run_command", command="true")  # adopts it
            for tool in ("run_command", "start_background_task"):
                foreign = await Caller(two, owned.sandbox_id)(tool, command="touch /tmp/x")
                assert foreign.structured_content == {
                    "error": SandboxOwnedError.text,
                    "error_category": "permission_denied",
                }
                for sandbox_id in (ended.sandbox_id, "unknown"):
                    gone = await Caller(one, sandbox_id)(tool, command="true")
                    assert gone.structured_content == {
                        "error": SandboxNotFoundError.text,
                        "error_category": "sandbox_not_found",
                    }
            assert await call.failure("read_file", path="/tmp/x") == "not_found"


WITHOUT_BUBBLEWRAP = """
import sys
from agent_sandbox.client.providers import child
from agent_sandbox.mcp_server.app import McpConfig, run_stdio
CHILD = (
    "import sys; from agent_sandbox.express import engine, __main__;"
    "engine.find_bubblewrap = lambda: None; sys.exit(__main__.main())"
)
ordinary = child.command
child.command = lambda *given: [sys.executable, "-c", CHILD, *ordinary(*given)[4:]]
run_stdio(McpConfig())
"""


async def test_without_isolation_commands_are_unsupported_and_files_work() -> None:
    async with connected([sys.executable, "-c", WITHOUT_BUBBLEWRAP], ERAS[1]) as client:
        for tool in ("run_command", "start_background_task"):
            result = await client.call_tool(tool, {"command": "true"})
            assert (result.structured_content or {})["error_category"] == "unsupported"
        listed = await client.call_tool("list_background_tasks", {})
        assert (listed.structured_content or {})["tasks"] == []
        assert not (await client.call_tool("list_files", {"path": "/"})).is_error
