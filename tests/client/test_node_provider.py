"""provider="node": the real npm package e2b in a real Node, against our own Express."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from tests.client.conftest import run
from tests.support.express import Service, log_lines, served
from tests.support.node import NODE, installed_packages

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client.providers.node import NodeProvider
from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    AuthenticationError,
    CommandTimeoutError,
    ConfigError,
    FileKindError,
    FileMissingError,
    SandboxNotFoundError,
    SandboxUnavailableError,
    UnsupportedError,
)

KEY = "canary-api-key-51ab"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("express")
    keys = directory / "keys"
    keys.write_text(KEY)
    with served(directory, "--api-key-file", str(keys), api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def provider(service: Service) -> Iterator[NodeProvider]:
    found = provider_of(service.url)
    yield found
    found.stop()


def provider_of(url: str, packages: Path | None = None, node: object = NODE) -> NodeProvider:
    return NodeProvider(
        packages or installed_packages(),
        node=str(node),
        api_url=url,
        api_key=KEY,
        sandbox_url=url,
    )


@pytest.fixture(params=["async", "blocking"])
async def client(request: pytest.FixtureRequest, provider: NodeProvider) -> AsyncIterator[Any]:
    surface: Any = agent_sandbox if request.param == "async" else agent_sandbox.sync
    found = surface.SandboxClient(provider=provider)
    yield found
    await run(found.aclose if request.param == "async" else found.close)


@pytest.fixture
async def sandbox(client: Any) -> AsyncIterator[Any]:
    found = await run(partial(client.create, metadata={"job": "42"}))
    yield found
    await run(partial(client.kill, found.sandbox_id))


@contextmanager
def using(url: str) -> Iterator[agent_sandbox.sync.SandboxClient]:
    """Use a Node process of its own for a service at a URL."""
    provider = provider_of(url)
    try:
        with agent_sandbox.sync.SandboxClient(provider=provider) as client:
            yield client
    finally:
        provider.stop()


@contextmanager
def answering(answer: Callable[[str], tuple[int, Any, dict[str, str]]]) -> Iterator[str]:
    """Serve JSON on loopback: status, value and headers for the target of a request."""

    class Peer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value, headers = answer(self.path)
            data = json.dumps(value).encode()
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Peer) as peer:
        serving = threading.Thread(target=peer.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{peer.server_port}"
        finally:
            peer.shutdown()
            serving.join(30)


def asked(service: Service) -> int:
    """Return how many requests the service has seen."""
    return sum(line["message"] == "request" for line in log_lines(service.log()))


def environment(service: Service) -> dict[str, str]:
    return {
        "AGENT_SANDBOX_PROVIDER": "node",
        "AGENT_SANDBOX_NODE": str(NODE),
        "AGENT_SANDBOX_NODE_PACKAGES": str(installed_packages()),
        "AGENT_SANDBOX_API_URL": service.url,
        "AGENT_SANDBOX_URL": service.url,
        "AGENT_SANDBOX_API_KEY": KEY,
    }


# --- What works -----------------------------------------------------------------------------------


async def test_a_sandbox_is_made_found_listed_looked_at_prolonged_and_killed(
    client: Any, sandbox: Any
) -> None:
    info = await run(sandbox.info)
    assert (info.sandbox_id, info.state) == (sandbox.sandbox_id, "running")
    assert info.metadata == {"job": "42"}
    listed = await run(client.list)
    assert sandbox.sandbox_id in {one.sandbox_id for one in listed}
    again = await run(partial(client.connect, sandbox.sandbox_id, ttl_seconds=1))
    assert (await run(again.info)).end_at >= info.end_at, "connecting shortened its life"
    await run(partial(again.set_ttl, 3_000))
    assert (await run(again.info)).end_at > info.end_at
    assert await run(again.kill)
    assert not await run(sandbox.kill)


def test_a_list_of_several_pages_is_whole() -> None:
    def page(query: str) -> tuple[int, Any, dict[str, str]]:
        number = 2 if "nextToken=second" in query else 1
        times = {"startedAt": "2026-01-01T00:00:00Z", "endAt": "2026-01-01T00:05:00Z"}
        one = {"sandboxID": f"i{number}", "templateID": "base", "state": "running", **times}
        rest = {"clientID": "", "cpuCount": 1, "memoryMB": 1, "envdVersion": "0.6.4"}
        return 200, [one | rest], {"x-next-token": "second"} if number == 1 else {}

    with answering(page) as url, using(url) as client:
        assert [one.sandbox_id for one in client.list()] == ["i1", "i2"]


@pytest.mark.parametrize("size", [0, 2, 1_048_576 + 1])
async def test_bytes_go_in_and_come_back(sandbox: Any, size: int) -> None:
    data = os.urandom(size)
    written = await run(partial(sandbox.files.write, "/tmp/ü %2F", data))
    assert (written.path, written.bytes_written) == ("/tmp/ü %2F", size)
    assert await run(partial(sandbox.files.read_bytes, "/tmp/ü %2F")) == data


async def test_a_command_runs_and_tells_everything(sandbox: Any) -> None:
    commands = sandbox.commands
    line = 'echo "$A"; pwd; echo oh >&2; exit 3'
    done = await run(partial(commands.run, line, cwd="/tmp", env={"A": "hällo"}))
    assert (done.exit_code, done.stdout, done.stderr) == (3, "hällo\n/tmp\n", "oh\n")
    words = await run(partial(commands.run, ["printf", "%s|", "a'b", "$x", ""]))
    assert (words.exit_code, words.stdout) == (0, "a'b|$x||")
    seen: list[bytes] = []
    await run(partial(commands.run, "echo one; echo two", on_stdout=seen.append))
    assert b"".join(seen) == b"one\ntwo\n"
    with pytest.raises(CommandTimeoutError) as late:
        await run(partial(commands.run, "echo before; sleep 1000", timeout_s=1))
    assert late.value.result.stdout == "before\n"


async def test_a_cancelled_command_is_killed(provider: NodeProvider) -> None:
    async with agent_sandbox.SandboxClient(provider=provider) as client:
        sandbox = await client.create()
        line = "touch /tmp/on; exec sleep 4242"
        command = asyncio.create_task(sandbox.commands.run(line, timeout_s=None))
        started = "until [ -e /tmp/on ]; do sleep 0.05; done"
        assert (await sandbox.commands.run(started)).exit_code == 0
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)
        ended = "while pgrep -f '[s]leep 4242'; do sleep 0.05; done"
        assert (await sandbox.commands.run(ended, timeout_s=30)).exit_code == 0
        await sandbox.kill()


# --- What it refuses ------------------------------------------------------------------------------


async def test_what_it_cannot_do_is_refused_and_nobody_is_asked(
    sandbox: Any, service: Service, tmp_path: Path
) -> None:
    files, commands = sandbox.files, sandbox.commands
    before = asked(service)
    calls: list[Callable[[], Any]] = [
        partial(files.read_bytes, "/tmp/a", max_bytes=10),
        partial(files.read_text, "/tmp/a", max_bytes=10),
        partial(files.download, "/tmp/a", tmp_path / "a"),
        partial(files.list, "/tmp"),
        partial(files.stat, "/tmp"),
        partial(files.make_dir, "/tmp/d"),
        partial(files.rename, "/tmp/a", "/tmp/b"),
        partial(files.remove, "/tmp/a"),
        partial(commands.start, "true"),
        partial(commands.list),
        partial(commands.kill, 7),
    ]
    for call in calls:
        with pytest.raises(UnsupportedError):
            await run(call)
    with pytest.raises(UnsupportedError):
        files.stream("/tmp/a")
    assert asked(service) == before
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("named", [False, True])
async def test_the_mcp_tools_that_bound_a_read_ask_nobody(
    service: Service, provider: NodeProvider, named: bool
) -> None:
    box = service.create()
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "agent_sandbox", "mcp"], env=environment(service)
    )
    async with Client(parameters, read_timeout_seconds=60) as client:
        where = {"sandbox_id": box.sandbox_id} if named else {}
        before = asked(service)
        for tool in ("download_file", "read_file"):
            answer = await client.call_tool(tool, {"path": "/tmp/a", **where})
            assert answer.is_error
            told = answer.structured_content
            assert told is not None
            assert told["error_category"] == "unsupported"
        assert asked(service) == before
        sent = await client.call_tool(
            "upload_file", {"path": "/tmp/a", "content_base64": "AP8=", **where}
        )
        assert sent.structured_content is not None
        assert sent.structured_content["bytes_written"] == 2
    if named:
        assert box.kill().status_code == 404, "the session's end destroys what it adopted"


async def test_a_value_that_is_too_large_is_refused_in_bounded_memory(sandbox: Any) -> None:
    made = await run(partial(sandbox.commands.run, "truncate -s 67108865 /tmp/big"))
    assert made.exit_code == 0
    with pytest.raises(UnsupportedError):
        await run(partial(sandbox.files.read_bytes, "/tmp/big"))
    with pytest.raises(UnsupportedError):
        await run(partial(sandbox.files.write, "/tmp/bigger", iter([b"x" * 1_048_576] * 65)))
    await run(partial(sandbox.files.write, "/tmp/a", b"1"))


async def test_output_without_end_is_stopped(sandbox: Any) -> None:
    with pytest.raises(AgentSandboxError) as stopped:
        await run(partial(sandbox.commands.run, "yes", timeout_s=120))
    assert stopped.value.code == "E5000"
    done = await run(partial(sandbox.commands.run, "pgrep -x yes"))
    assert done.exit_code == 1, "it was killed"


# --- Failures -------------------------------------------------------------------------------------


async def test_failures_have_our_codes(client: Any, sandbox: Any) -> None:
    files, commands = sandbox.files, sandbox.commands
    with pytest.raises(FileMissingError):
        await run(partial(files.read_bytes, "/tmp/missing"))
    with pytest.raises(FileKindError):
        await run(partial(files.read_bytes, "/tmp"))
    with pytest.raises(FileKindError):
        await run(partial(files.write, "/tmp", b""))
    with pytest.raises(FileMissingError):
        await run(partial(commands.run, "true", cwd="/missing"))
    with pytest.raises(SandboxNotFoundError):
        await run(partial(client.connect, "missing"))
    with pytest.raises(SandboxNotFoundError):
        await run(partial(client.info, "missing"))
    await run(sandbox.kill)
    for call in (partial(files.read_bytes, "/a"), partial(commands.run, "true")):
        with pytest.raises(SandboxNotFoundError):
            await run(call)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ArgumentError),
        (401, AuthenticationError),
        (429, SandboxUnavailableError),
        (500, SandboxUnavailableError),
        (501, UnsupportedError),
        (503, SandboxUnavailableError),
    ],
)
def test_a_status_becomes_a_code_and_no_word_comes_along(
    status: int, expected: type[AgentSandboxError]
) -> None:
    def refuse(_: str) -> tuple[int, Any, dict[str, str]]:
        return status, {"code": status, "message": "canary-of-upstream"}, {}

    with answering(refuse) as url, using(url) as client, pytest.raises(expected) as failed:
        client.create()
    assert type(failed.value) is expected
    assert "canary" not in repr(failed.value.__dict__) + str(failed.value)


def test_nobody_at_the_address_is_an_unavailable_service() -> None:
    with using("http://127.0.0.1:1") as client, pytest.raises(SandboxUnavailableError):
        client.create()


# --- The process ----------------------------------------------------------------------------------


def child_of(provider: NodeProvider) -> psutil.Process:
    provider.open()
    child = provider._bridge._child
    assert child is not None
    return psutil.Process(child.pid)


def test_no_secret_is_in_an_argument_or_in_the_environment(provider: NodeProvider) -> None:
    node = child_of(provider)
    assert "node" in node.cmdline()[0]
    assert KEY not in " ".join(node.cmdline())
    assert not [name for name in node.environ() if name.startswith(("E2B_", "AGENT_SANDBOX_"))]
    assert KEY not in " ".join(node.environ().values())
    assert KEY not in repr(provider._bridge._settings)


def test_the_same_settings_share_a_process(provider: NodeProvider, service: Service) -> None:
    assert child_of(provider).pid == child_of(provider_of(service.url)).pid


def test_another_process_takes_over_and_shortens_no_life(
    provider: NodeProvider, service: Service
) -> None:
    with agent_sandbox.sync.SandboxClient(provider=provider) as client:
        sandbox = client.create(ttl_seconds=3_000)
        sandbox.files.write("/tmp/a", b"kept")
        end_at = sandbox.info().end_at
        node = provider._bridge._child
        assert node is not None
        node.kill()
        node.wait(30)
        assert client.info(sandbox.sandbox_id).end_at == end_at, "a new one was started"
        assert sandbox.files.read_bytes("/tmp/a") == b"kept"
        assert sandbox.info().end_at >= end_at
        assert sandbox.kill()


def test_it_ends_with_its_program_however_that_ends(service: Service) -> None:
    source = (
        "import sys, time\nfrom agent_sandbox.sync import SandboxClient\n"
        "client = SandboxClient()\nclient.list()\n"
        "print(client._provider._bridge._child.pid, flush=True)\ntime.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment(service)},
    ) as program:
        assert program.stdout is not None
        node = psutil.Process(int(program.stdout.readline()))
        program.send_signal(signal.SIGKILL)
        program.wait(30)
    _, alive = psutil.wait_procs([node], timeout=30)
    assert alive == []


def test_a_folder_without_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failed:
        provider_of("http://127.0.0.1:1", packages=tmp_path).open()
    assert failed.value.__dict__["reason"].startswith(
        "The folder of AGENT_SANDBOX_NODE_PACKAGES has no"
    )


def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "e2b"
    package.mkdir(parents=True)
    (package / "index.js").write_text("throw new Error('canary')")
    with pytest.raises(ConfigError) as failed:
        provider_of("http://127.0.0.1:1", packages=tmp_path).open()
    assert failed.value.__dict__["reason"].startswith("The package e2b cannot be loaded")


def test_a_node_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as failed:
        provider_of("http://127.0.0.1:1", node=tmp_path / "nothing").open()
    assert (
        failed.value.__dict__["reason"]
        == "Node cannot be started: AGENT_SANDBOX_NODE names no program."
    )
    broken = tmp_path / "broken"
    broken.write_text("no program")
    broken.chmod(0o755)
    with pytest.raises(ConfigError) as failed:
        provider_of("http://127.0.0.1:1", node=broken).open()
    assert failed.value.__dict__["reason"].startswith("Node cannot be started")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as failed:
        NodeProvider(tmp_path).open()
    assert failed.value.__dict__["reason"].startswith("Node was not found")


@pytest.mark.parametrize(
    "says",
    [
        "exit 0",
        'echo \'{"protocol":2,"ready":true}\'; sleep 100',
        "echo '[]'; sleep 100",
        "echo nonsense; sleep 100",
        "head -c 100000 /dev/zero; sleep 100",
        'echo \'{"protocol":1,"error":"canary"}\'',
    ],
)
def test_a_program_that_speaks_otherwise_is_refused_and_ended(tmp_path: Path, says: str) -> None:
    impostor = tmp_path / "node"
    impostor.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{says}\n")
    impostor.chmod(0o755)
    before = len(os.listdir("/proc/self/fd"))
    provider = provider_of("http://127.0.0.1:1", node=impostor)
    with pytest.raises(SandboxUnavailableError):
        provider.open()
    provider.stop()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
