"""What a client may send on a line, byte by byte, and what comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.express import Service, wait_until
from tests.support.mcp_servers import (
    WAIT_S,
    environment,
    initialize,
    modern_call,
    stdio_command,
    tool_call,
)
from tests.support.relay import Relay, relay_to

from agent_sandbox.limits import MAX_FILE_BYTES, MAX_STDIO_LINE_BYTES
from agent_sandbox.mcp_server.stdio import Wire, serve_stdio


class Pipe:
    """A STDIO server, and its two pipes as they are."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def send(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(line + b"\n")
        await asyncio.wait_for(self.process.stdin.drain(), WAIT_S)

    async def receive(self) -> Any:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), WAIT_S)
        assert line.endswith(b"\n"), line[:200]
        return json.loads(line)

    async def ask(self, *lines: bytes) -> Any:
        await self.send(*lines)
        return await self.receive()

    def stop_reading(self) -> None:
        """Let the server's answers lie from now on."""
        assert self.process.stdout is not None
        self.process.stdout._transport.pause_reading()  # type: ignore[attr-defined]

    async def close_input(self) -> None:
        """Close the server's input and wait for the orderly end of its process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        # Not `wait()`: it waits for the pipes, too.
        await asyncio.to_thread(wait_until, lambda: self.process.returncode is not None)
        assert self.process.returncode == 0


@asynccontextmanager
async def pipe(
    *, hello: bool = True, env: dict[str, str] | None = None, command: list[str] | None = None
) -> AsyncIterator[Pipe]:
    process = await asyncio.create_subprocess_exec(
        *(command or stdio_command()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(env),
        limit=2 * MAX_STDIO_LINE_BYTES,
    )
    try:
        it = Pipe(process)
        if hello:
            assert (await it.ask(initialize("hello")))["id"] == "hello"
        yield it
        if process.returncode is None:
            await it.close_input()
        assert process.stderr is not None
        assert (await process.stderr.read()).decode() == ""
    finally:
        # asyncio closes it too late, and `wait()` would wait for pipes that nobody reads.
        process._transport.close()  # type: ignore[attr-defined]
        await process.wait()


def padded(line: bytes, size: int) -> bytes:
    """Return a line of exactly `size` bytes that means the same."""
    return line[:-1] + b" " * (size - len(line)) + line[-1:]


PING = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}'


async def test_a_line_of_the_limit_is_served_and_one_byte_more_is_refused_with_its_id() -> None:
    async with pipe() as it:
        assert await it.ask(padded(PING % b"1", MAX_STDIO_LINE_BYTES)) == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {},
        }
        refused = await it.ask(padded(PING % b"2", MAX_STDIO_LINE_BYTES + 1))
        assert refused["id"] == 2
        assert refused["error"]["code"] == -32600
        assert (await it.ask(PING % b"3"))["id"] == 3


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":"a b","method":"x","params":{"p":"%s"}}', "a b"),
        (b'{"method":"x","params":{"id":1,"p":"%s"},"jsonrpc":"2.0","id":9}', 9),
        (b'{"params":{"p":"%s","id":1}}', None),
        (b'{"params":"%s\\",\\"id\\":5"}', None),
        (b"%s", None),
        (b'{"jsonrpc":"2.0","id":%s}', None),
    ],
)
async def test_the_answer_to_a_long_line_has_its_id_only_where_that_is_sure(
    line: bytes, request_id: object
) -> None:
    async with pipe(hello=False) as it:
        refused = await it.ask(line % (b"7" * (MAX_STDIO_LINE_BYTES + 70_000)))
        assert (refused["id"], refused["error"]["code"]) == (request_id, -32600)
        assert (await it.ask(initialize(1)))["id"] == 1


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"{", -32700, None),
        (b"nonsense", -32700, None),
        (b'"\\ud800"', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\\udc00"}}', -32700, None),
        (b'{"a":"\xff"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"[]", -32600, None),
        (b"5", -32600, None),
        (b"[%s]" % (PING % b"1"), -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":"x","method":5}', -32600, "x"),
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","params":[1]}', -32600, 3),
    ],
)
async def test_a_malformed_line_is_answered_and_the_next_one_served(
    line: bytes, code: int, request_id: object
) -> None:
    async with pipe() as it:
        refused = await it.ask(line)
        assert (refused["error"]["code"], refused["id"]) == (code, request_id)
        assert set(refused["error"]) == {"code", "message"}
        assert (await it.ask(b"", b"  \r", PING % b"7"))["id"] == 7


async def test_arguments_that_are_no_object_are_refused_without_a_word_of_them() -> None:
    line = (
        b'{"jsonrpc":"2.0","id":4,"method":"tools/call",'
        b'"params":{"name":"read_file","arguments":%s}}'
    )
    async with pipe() as it:
        for arguments in (b"[]", b'["canary"]', b'"canary"', b"5"):
            refused = await it.ask(line % arguments)
            assert (refused["id"], refused["error"]["code"]) == (4, -32602)
            assert "canary" not in str(refused)
        answer = await it.ask(line % b"null")
        assert answer["result"]["structuredContent"]["error_category"] == "invalid_input"


@pytest.mark.parametrize("request_id", [2**64, -1, "0", "x" * 100_000, "\u2603", ""])
async def test_an_id_is_echoed_exactly(request_id: object) -> None:
    async with pipe() as it:
        assert (await it.ask(PING % json.dumps(request_id).encode()))["id"] == request_id


async def test_the_largest_file_goes_both_ways_in_one_line_each_in_both_eras() -> None:
    text = base64.b64encode(os.urandom(MAX_FILE_BYTES)).decode()
    for build, hello in ((tool_call, True), (modern_call, False)):
        async with pipe(hello=hello) as it:
            up = await it.ask(build(1, "upload_file", path="/tmp/x", content_base64=text))
            assert up["result"]["structuredContent"]["bytes_written"] == MAX_FILE_BYTES
            down = await it.ask(build(2, "download_file", path="/tmp/x"))
            assert down["result"]["structuredContent"]["content_base64"] == text


async def test_an_answer_over_the_limit_becomes_an_error_with_its_id() -> None:
    # No tool of ours has such an answer: this is the last line of defence of the transport.
    from mcp_types import JSONRPCResponse

    from agent_sandbox.mcp_server.stdio import to_line

    long = JSONRPCResponse(jsonrpc="2.0", id=5, result={"x": "y" * MAX_STDIO_LINE_BYTES})
    answer = json.loads(to_line(long))
    assert (answer["id"], answer["error"]["code"]) == (5, -32603)


async def test_a_sandbox_made_on_2026_07_28_is_there_at_the_next_call() -> None:
    async with pipe(hello=False) as it:
        first = await it.ask(modern_call(1, "write_file", path="/tmp/x", content="kept"))
        second = await it.ask(modern_call(2, "read_file", path="/tmp/x"))
        assert second["result"]["structuredContent"]["content"] == "kept"
        ids = {a["result"]["structuredContent"]["sandbox_id"] for a in (first, second)}
        assert len(ids) == 1


async def test_what_is_printed_never_gets_onto_the_wire() -> None:
    noisy = (
        "import ctypes, os, subprocess\n"
        "from agent_sandbox.mcp_server import tools\n"
        "from agent_sandbox.mcp_server.app import McpConfig, run_stdio\n"
        "def noisy(call, arguments):\n"
        "    print('python', flush=True)\n"
        "    ctypes.CDLL(None).puts(b'c library'); ctypes.CDLL(None).fflush(None)\n"
        "    os.write(1, b'descriptor')\n"
        "    subprocess.run(['sh', '-c', 'echo child; cat'], check=True)\n"
        "    raise RuntimeError\n"
        "tools.ALL_TOOLS[1].fn = noisy\n"
        "run_stdio(McpConfig())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        noisy,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    it = Pipe(process)
    await it.ask(initialize(0))
    failed = await it.ask(tool_call(1, "list_sandboxes"))
    assert failed["result"]["structuredContent"]["error_category"] == "file_transfer"
    assert (await it.ask(PING % b"2"))["id"] == 2
    await it.close_input()
    assert process.stderr is not None
    printed = (await process.stderr.read()).decode()
    for word in ("python", "c library", "descriptor", "child"):
        assert word in printed
    process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def held_calls(express: Service, what: bytes) -> AsyncIterator[tuple[Pipe, Relay, str]]:
    """A server whose requests to the sandbox service that contain `what` wait."""
    async with relay_to(express.url) as relay:
        env = {"AGENT_SANDBOX_API_URL": relay.url, "AGENT_SANDBOX_URL": relay.url}
        async with pipe(env=env) as it:
            made = await it.ask(tool_call("make", "write_file", path="/tmp/x", content="old"))
            relay.hold(what)
            yield it, relay, made["result"]["structuredContent"]["sandbox_id"]


@pytest.mark.parametrize("twin", [b"1", b'"1"', b'"01"', b'" 1"', b'"1_0"', b'"x"'])
async def test_a_second_request_with_an_id_in_flight_is_refused_without_it_and_the_first_unhurt(
    express: Service, twin: bytes
) -> None:
    first = {b'"1_0"': 10, b'"x"': "x"}.get(twin, 1)
    async with held_calls(express, b"POST /files") as (it, relay, _):
        await it.send(tool_call(first, "write_file", path="/tmp/x", content="new"))
        await relay.wait_held()
        refused = await it.ask(PING % twin)
        assert refused["id"] is None
        assert refused["error"]["code"] == -32600
        relay.release()
        answer = await it.receive()
        assert answer["id"] == first
        assert answer["result"]["structuredContent"]["success"]
        assert (await it.ask(PING % twin))["id"] == json.loads(twin)  # free again


@pytest.mark.parametrize(
    "malformed",
    [
        b'{"jsonrpc":"1.0","id":"01","method":"ping"}',
        padded(PING % b"1", MAX_STDIO_LINE_BYTES + 1),
    ],
    ids=["malformed", "too long"],
)
async def test_a_refused_line_with_an_id_in_flight_is_answered_without_it_and_the_call_unhurt(
    express: Service, malformed: bytes
) -> None:
    text = base64.b64encode(os.urandom(MAX_FILE_BYTES)).decode()
    async with held_calls(express, b"GET /files") as (it, relay, _):
        await it.ask(tool_call(0, "upload_file", path="/tmp/x", content_base64=text))
        await it.send(tool_call(1, "download_file", path="/tmp/x"))
        await relay.wait_held()
        refused = await it.ask(malformed)
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)
        relay.release()
        answer = await it.receive()
        assert answer["id"] == 1
        assert answer["result"]["structuredContent"]["content_base64"] == text


async def test_a_refused_line_does_not_disturb_the_call_with_its_id_that_follows() -> None:
    text = base64.b64encode(os.urandom(MAX_FILE_BYTES)).decode()
    async with pipe() as it:
        await it.ask(tool_call(0, "upload_file", path="/tmp/x", content_base64=text))
        malformed = b'{"jsonrpc":"1.0","id":1,"method":"ping"}'
        refused = await it.ask(malformed, tool_call(1, "download_file", path="/tmp/x"))
        assert refused["id"] == 1
        answer = await it.receive()
        assert answer["result"]["structuredContent"]["content_base64"] == text


async def test_a_cancelled_id_is_free_once_its_handler_has_ended_and_nothing_was_written(
    express: Service,
) -> None:
    async with held_calls(express, b"POST /files") as (it, relay, _):
        await it.send(tool_call(5, "write_file", path="/tmp/x", content="new"))
        await relay.wait_held()
        await it.send(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}'
        )
        await relay.wait_dropped()
        relay.release()
        answer = await it.ask(tool_call(6, "read_file", path="/tmp/x"))
        assert answer["id"] == 6  # a cancelled request is not answered
        assert answer["result"]["structuredContent"]["content"] == "old"
        again = await it.ask(tool_call(5, "read_file", path="/tmp/x"))
        assert again["id"] == 5


def alive(express: Service) -> set[str]:
    return {box["sandboxID"] for box in express.http.get("/v2/sandboxes").json()}


async def test_the_end_of_input_in_the_middle_of_a_call_ends_call_process_and_sandbox_in_time(
    express: Service,
) -> None:
    async with held_calls(express, b"POST /files") as (it, relay, _):
        await it.send(tool_call(5, "write_file", path="/tmp/x", content="new"))
        await relay.wait_held()
        await it.close_input()
        assert alive(express) == set()


async def test_a_destroy_that_takes_longer_than_the_process_may_is_finished_after_its_end(
    express: Service,
) -> None:
    async with held_calls(express, b"DELETE /sandboxes") as (it, relay, sandbox_id):
        await it.close_input()
        assert alive(express) == {sandbox_id}
        relay.release()
        await asyncio.to_thread(wait_until, lambda: not alive(express))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_the_process_in_order(how: signal.Signals) -> None:
    async with pipe() as it:
        it.process.send_signal(how)
        assert await asyncio.wait_for(it.process.wait(), WAIT_S) == 0


class Interrupted:
    """A server of the SDK that is told to stop while it hands on a message."""

    def create_initialization_options(self) -> None:
        return None

    async def run(self, read: Any, write: Any, _options: None) -> None:
        async with read, write, anyio.create_task_group():
            async for _ in read:
                pass
            raise anyio.BrokenResourceError


async def test_what_breaks_within_the_sdk_when_it_is_told_to_stop_is_an_orderly_end() -> None:
    server: Any = Interrupted()
    nobody = os.open(os.devnull, os.O_RDWR)
    with anyio.fail_after(WAIT_S):
        wire = Wire(nobody, nobody)
        await serve_stdio(server, wire, on_eof=lambda: None, on_end=lambda: None)
    os.close(nobody)


SLOW_TO_TAKE_APART = """
import builtins, time
from agent_sandbox.mcp_server.app import McpConfig, run_stdio

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(60)

builtins.slow = Slow()
run_stdio(McpConfig())
"""


async def test_nobody_waits_for_the_interpreter_to_be_taken_apart() -> None:
    async with pipe(command=[sys.executable, "-c", SLOW_TO_TAKE_APART]) as it:
        assert (await it.ask(PING % b"1"))["id"] == 1
        await it.close_input()


async def test_a_client_that_stops_reading_does_not_stop_the_end(express: Service) -> None:
    text = "x" * MAX_FILE_BYTES
    async with pipe() as it:
        await it.ask(tool_call(0, "write_file", path="/tmp/x", content=text))
        for number in range(1, 9):
            await it.send(tool_call(number, "read_file", path="/tmp/x"))
        it.stop_reading()
        await it.close_input()


async def test_nor_does_one_that_reads_not_even_what_refuses_its_lines() -> None:
    async with pipe() as it:
        it.stop_reading()
        # The refusals fill every buffer on their way, so that the server takes nothing more in
        # and does not meet the end of the input behind these lines.
        await it.send(*[b"{"] * 60_000)
        await it.close_input()


async def test_what_was_to_be_done_at_the_exit_of_python_is_done(tmp_path: Path) -> None:
    done = tmp_path / "done"
    program = (
        "import atexit, pathlib, sys\n"
        "from agent_sandbox.mcp_server.app import McpConfig, run_stdio\n"
        "atexit.register(pathlib.Path(sys.argv[1]).touch)\n"
        "run_stdio(McpConfig())\n"
    )
    async with pipe(command=[sys.executable, "-c", program, str(done)]) as it:
        await it.close_input()
    assert done.exists()
