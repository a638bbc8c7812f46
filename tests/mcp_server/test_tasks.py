"""Background tasks: found by their id, read by offset, seen by those who may, ended with theirs."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.mcp_server.conftest import Caller, Connect
from tests.support.express import Service
from tests.support.mcp_servers import ERAS, WAIT_S, connected, http_server
from tests.support.tasks import NO_SUCH_TASK, elsewhere, entry, fields_of, listed, until

from agent_sandbox.errors import (
    AgentSandboxError,
    SandboxNotFoundError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    UnsupportedError,
)
from agent_sandbox.mcp_server.outputs import OUTPUT_BYTES
from agent_sandbox.mcp_server.ownership import Use
from agent_sandbox.mcp_server.principals import ANONYMOUS, Principal
from agent_sandbox.mcp_server.tasks import Tasks


async def test_a_task_goes_on_after_its_call_and_tells_its_output_and_its_end(call: Caller) -> None:
    line = "echo out; echo err >&2; until [ -e /tmp/go ]; do sleep 0.05; done; echo end; exit 5"
    started = await call.fields("start_background_task", command=line, cwd="/tmp")
    task_id = started.pop("task_id")
    assert started == {"success": True, "retained": False, "sandbox_id": call.sandbox_id}
    running = await until(call.client, task_id, output="out\nerr\n")
    assert running == {
        "success": True,
        "task_id": task_id,
        "state": "running",
        "output": "out\nerr\n",
        "offset": 0,
        "next_offset": 8,
        "total_bytes": 8,
        "omitted_bytes": 0,
        "sandbox_id": call.sandbox_id,
    }
    assert entry(await listed(call.client), task_id) == {
        "task_id": task_id,
        "sandbox_id": call.sandbox_id,
        "command": line,
        "retained": False,
        "state": "running",
    }
    await call.fields("write_file", path="/tmp/go", content="")
    ended = await until(call.client, task_id, state="ended")
    assert (ended["exit_code"], ended["output"]) == (5, "out\nerr\nend\n")
    rest = await fields_of(call.client, "get_background_task", task_id=task_id, offset=8)
    assert (rest["output"], rest["offset"], rest["next_offset"]) == ("end\n", 8, 12)
    assert entry(await listed(call.client), task_id)["exit_code"] == 5
    stopped = await fields_of(call.client, "stop_background_task", task_id=task_id)
    assert (stopped["stopped"], stopped["exit_code"]) == (False, 5)


async def test_stopping_kills_the_whole_group_and_the_output_stays(call: Caller) -> None:
    line = "trap '' TERM; sleep 76543 & echo begun; wait"
    task_id = (await call.fields("start_background_task", command=line))["task_id"]
    await until(call.client, task_id, output="begun\n")
    stopped = await fields_of(call.client, "stop_background_task", task_id=task_id)
    assert stopped == {
        "success": True,
        "task_id": task_id,
        "stopped": True,
        "state": "ended",
        "exit_code": -9,
        "sandbox_id": call.sandbox_id,
    }
    left = await call.fields("run_command", command="cat /proc/[0-9]*/cmdline 2>/dev/null")
    assert "sleep\x0076543" not in left["stdout"]
    assert (await until(call.client, task_id, state="ended"))["output"] == "begun\n"


async def test_long_and_binary_output_is_read_in_bounded_pieces_and_the_gap_is_counted(
    call: Caller,
) -> None:
    line = "printf '\\377'; head -c 1M /dev/zero; printf '\\376'"
    task_id = (await call.fields("start_background_task", command=line))["task_id"]
    await until(call.client, task_id, state="ended")
    read, gone, offset = b"", 0, 0
    while True:
        fields = await fields_of(call.client, "get_background_task", task_id=task_id, offset=offset)
        exact = fields.get("output_base64")
        part = fields["output"].encode() if exact is None else base64.b64decode(exact)
        assert len(part) <= OUTPUT_BYTES
        read, gone, offset = read + part, gone + fields["omitted_bytes"], fields["next_offset"]
        if not part:
            break
    assert len(read) + gone == offset == fields["total_bytes"] == 2**20 + 2
    assert len(read) == 262_144
    assert (read[0], read[-1], set(read[1:-1])) == (0xFF, 0xFE, {0})


@pytest.mark.parametrize(
    ("arguments", "category"),
    [
        ({"command": "true", "retain_seconds": 60}, "invalid_input"),
        ({"command": "true", "retain": False, "retain_seconds": 60}, "invalid_input"),
        ({"command": "true", "retain": True, "retain_seconds": 0}, "invalid_input"),
        ({"command": "true", "retain": True, "retain_seconds": 86_401}, "invalid_input"),
        ({"command": "true", "retain": "yes"}, "invalid_input"),
        ({"command": "true", "cwd": "/no/such/place"}, "not_found"),
        ({"command": ""}, "invalid_input"),
    ],
)
async def test_what_cannot_start_is_refused_by_its_category(
    call: Caller, arguments: dict[str, Any], category: str
) -> None:
    before = await listed(call.client)
    assert await call.failure("start_background_task", **arguments) == category
    assert await listed(call.client) == before


@pytest.mark.parametrize("tool", ["get_background_task", "stop_background_task"])
@pytest.mark.parametrize("task_id", ["x", "x.y", "../etc", "x" * 256, "a.b.c", "\u00e9", "a." * 32])
async def test_an_unknown_task_is_not_found(call: Caller, tool: str, task_id: str) -> None:
    assert await fields_of(call.client, tool, task_id=task_id) == NO_SUCH_TASK
    own = f"{call.sandbox_id}.{'0' * 32}"
    assert await fields_of(call.client, tool, task_id=own) in (
        NO_SUCH_TASK,
        {"success": True, "task_id": own, "stopped": False, "state": "running"},
    )


@pytest.mark.parametrize("offset", [-1, 2**53, 1.5, "0"])
async def test_an_offset_is_a_number_from_0_on(call: Caller, offset: Any) -> None:
    refused = await fields_of(call.client, "get_background_task", task_id="x", offset=offset)
    assert refused["error_category"] == "invalid_input"


async def test_a_task_ends_with_its_sandbox_and_is_then_unknown(connect: Connect) -> None:
    async with connect() as client:
        started = await fields_of(client, "start_background_task", command="sleep 1000")
        assert started["sandbox_id"]
        killed = await fields_of(client, "kill_sandbox", sandbox_id=started["sandbox_id"])
        assert killed["success"]
        for tool in ("get_background_task", "stop_background_task"):
            assert await fields_of(client, tool, task_id=started["task_id"]) == NO_SUCH_TASK
        assert started["task_id"] not in str(await listed(client))


async def test_a_task_of_another_session_looks_like_none_and_goes_on(express: Service) -> None:
    with http_server(env=elsewhere(express)) as server:
        async with (
            connected(server.url, ERAS[0]) as one,
            connected(server.url, ERAS[0]) as two,
            connected(server.url, ERAS[1]) as lone,
        ):
            for retain in (False, True):
                started = await fields_of(
                    one, "start_background_task", command="sleep 1000", retain=retain
                )
                task_id = started["task_id"]
                for other in (two, lone):
                    for tool in ("get_background_task", "stop_background_task"):
                        assert await fields_of(other, tool, task_id=task_id) == NO_SUCH_TASK
                    assert await listed(other) == []
                assert entry(await listed(one), task_id)["state"] == "running"


async def test_without_a_session_the_id_is_all_that_a_task_needs(express: Service) -> None:
    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[1]) as client:
            started = await fields_of(client, "start_background_task", command="echo x")
            assert started["sandbox_created"] is True
        async with connected(server.url, ERAS[1]) as later:
            ended = await until(later, started["task_id"], state="ended")
            assert ended["output"] == "x\n"
            assert entry(await listed(later), started["task_id"])["exit_code"] == 0
            # A session sees the retained tasks of sandboxes that nobody owns, and no others.
            async with connected(server.url, ERAS[0]) as session:
                assert await listed(session) == []
            owned = await fields_of(later, "list_sandboxes")
            assert [one["is_owned"] for one in owned["sandboxes"]] == [False]


async def test_looking_at_a_task_renews_its_sandbox_and_listing_does_not(express: Service) -> None:
    def end_at(sandbox_id: str) -> str:
        return str(express.http.get(f"/sandboxes/{sandbox_id}").json()["endAt"])

    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[1]) as client:
            started = await fields_of(client, "start_background_task", command="sleep 1000")
            sandbox_id = started["sandbox_id"]
            await fields_of(client, "get_sandbox", sandbox_id=sandbox_id)  # renewals are settled
            before = end_at(sandbox_id)
            await listed(client)
            assert end_at(sandbox_id) == before
            await fields_of(client, "get_background_task", task_id=started["task_id"])
            await fields_of(client, "get_sandbox", sandbox_id=sandbox_id)
            assert end_at(sandbox_id) > before


class Stuck:
    """A registry, a sandbox and its commands in one, whose starts never answer."""

    sandbox_id = "x"
    resolve_timeout_s = WAIT_S

    def __init__(self) -> None:
        self.commands = self
        self.client = self
        self.started = anyio.Event()
        self.tags: list[str] = []
        self.killed: list[str] = []

    async def use(self, _use: Use, _id: None, operation: Any, *_more: Any, **_named: Any) -> Any:
        return await operation(self)

    async def list(self) -> list[Any]:
        return []

    async def start(self, _argv: Any, *, tag: str, **_more: Any) -> None:
        self.tags.append(tag)
        self.started.set()
        await anyio.sleep_forever()

    async def kill(self, tag: str) -> None:
        self.killed.append(tag)
        raise SandboxUnavailableError


async def test_a_cancelled_start_leaves_no_task_behind_that_nobody_knows() -> None:
    stuck = Stuck()
    tasks, use = Tasks(stuck), Use(None, ANONYMOUS)  # type: ignore[arg-type]  # it does as one

    async def start() -> None:
        await tasks.start(use, None, "true", cwd=None, retain_s=None)

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await stuck.started.wait()
        group.cancel_scope.cancel()
    assert len(stuck.tags) == 1
    assert stuck.killed == stuck.tags


async def test_a_start_that_hangs_holds_up_its_own_principal_only() -> None:
    stuck = Stuck()
    tasks = Tasks(stuck)  # type: ignore[arg-type]  # it does as one

    async def start(name: str) -> None:
        stuck.started = anyio.Event()
        group.start_soon(begin, Use(None, Principal(name)))
        await anyio.wait_all_tasks_blocked()

    async def begin(use: Use) -> None:
        await tasks.start(use, None, "true", cwd=None, retain_s=60)

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            for name in ("one", "one", "other"):
                await start(name)
            assert len(stuck.tags) == 2, "counting and starting are one step for each principal"
            group.cancel_scope.cancel()
    assert tasks._turns == {}, "nothing is kept of a principal that has no call under way"


async def test_an_answer_about_tasks_that_does_not_come_is_waited_for_as_long_as_is_set() -> None:
    stuck = Stuck()
    stuck.resolve_timeout_s = 0.01
    stuck.list = anyio.sleep_forever  # type: ignore[assignment,method-assign]  # hangs, too
    tasks, use = Tasks(stuck), Use(None, ANONYMOUS)  # type: ignore[arg-type]  # it does as one
    with anyio.fail_after(WAIT_S):
        with pytest.raises(SandboxTimeoutError):
            await tasks.visible(use)
        with pytest.raises(SandboxTimeoutError):
            await tasks.start(use, None, "true", cwd=None, retain_s=60)


class Listing:
    """A registry with three sandboxes; what it answers about the second one is an error."""

    resolve_timeout_s = WAIT_S

    def __init__(self, error: AgentSandboxError) -> None:
        self.client = self
        self.error = error

    async def list(self) -> list[Any]:
        return [SimpleNamespace(sandbox_id=name, metadata={}) for name in "abc"]

    def is_owned(self, _scope: None, _sandbox_id: str) -> bool:
        return False

    def is_foreign(self, _scope: None, _sandbox_id: str) -> bool:
        return False

    async def look(self, sandbox_id: str) -> Any:
        if sandbox_id == "b":
            raise self.error
        return SimpleNamespace(commands=self._Commands(f"task-{sandbox_id}"))

    class _Commands:
        def __init__(self, tag: str) -> None:
            self.tag = f"{tag[:5]}{ord(tag[-1]):032x}"

        async def list(self, *, ended: bool) -> list[Any]:
            assert ended
            return [SimpleNamespace(tag=self.tag, argv=["x"], exit_code=None, retained=True)]


async def test_a_sandbox_that_ends_under_a_listing_is_left_out() -> None:
    for error in (SandboxNotFoundError(), UnsupportedError()):
        tasks = Tasks(Listing(error))  # type: ignore[arg-type]  # it does as one
        found = await tasks.visible(Use(None, ANONYMOUS))
        assert [task.sandbox_id for task in found] == ["a", "c"]


async def test_another_error_under_a_listing_is_that_of_the_listing() -> None:
    tasks = Tasks(Listing(SandboxUnavailableError()))  # type: ignore[arg-type]  # it does as one
    with pytest.raises(SandboxUnavailableError):
        await tasks.visible(Use(None, ANONYMOUS))
