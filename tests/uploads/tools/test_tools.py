"""The tools on somebody else's MCP server: an ordinary `MCPServer`, and the official client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from tests.support.upload_parts import FOREIGN, ME, Sink, chunked, config, sha256

from agent_sandbox.errors import (
    AgentSandboxError,
    ConfigError,
    TransferTimeoutError,
    UploadOutcomeUnknownError,
    UploadTimeoutError,
)
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.fetch import FetchPolicy
from agent_sandbox.uploads.models import PlaceTarget, Principal, StoredUpload, UploadSession
from agent_sandbox.uploads.service import PROBE_NAME, UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore
from agent_sandbox.uploads.tools import (
    Backend,
    Context,
    UploadTool,
    backend_tools,
    upload_tools,
)

T = TypeVar("T")


class Made:
    """A service, what it charged, and a way to call tools made for it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.charged: list[str] = []
        self.store = SqliteStore(root / "uploads.sqlite")
        blobs = LocalBlobs(root / "blobs")
        self.service = UploadService(config(**settings), self.store, blobs, charge=self._charge)

    async def _charge(self, upload: StoredUpload, principal: Principal) -> None:
        self.charged.append(upload.upload_id)

    async def put(self, given: Mapping[str, Any], body: bytes) -> None:
        """Do what the endpoint does with a PUT."""
        endpoint = self.service.config.endpoint("upload", given["upload_id"])
        secret = given["headers"]["Authorization"]
        session = await self.service.authorise(given["upload_id"], endpoint, secret)
        await self.service.receive(await self.service.claim(session), chunked(body))


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    one = Made(tmp_path, allowed_extensions=frozenset({".csv"}), pending_per_workspace=3)
    await one.store.migrate()
    yield one
    await one.store.close()


async def call(tools: tuple[UploadTool, ...], name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool with the official client; the fields of its result, checked by it."""
    async with Client(MCPServer("other", tools=[*tools])) as client:
        result = await client.call_tool(name, arguments)
    fields: dict[str, Any] = dict(result.structured_content or {})
    assert bool(result.is_error) == ("error" in fields)
    return fields


def names(tools: tuple[UploadTool, ...]) -> list[str]:
    return [tool.name for tool in tools]


SESSIONS = ["create_upload_url", "get_upload", "revoke_upload"]


async def test_what_a_server_can_do_with_a_file_decides_which_tools_it_offers(made: Made) -> None:
    def files(_context: Context) -> Any: ...

    receiving = upload_tools(made.service, principal=ME)
    using = upload_tools(made.service, principal=ME, placer=Sink(), use_tool="count_rows")
    placing = upload_tools(made.service, principal=ME, files=files)
    assert names(receiving) == [*SESSIONS, "check_transfer"]
    assert names(using) == [*SESSIONS, "count_rows", "check_transfer"]
    moving = ["create_download_url", "fetch_url"]
    assert names(placing) == [*SESSIONS, "place_upload", "check_transfer", *moving]
    with pytest.raises(ConfigError):
        upload_tools(made.service, principal=ME, placer=Sink(), files=files)


async def test_the_guidance_names_the_tool_that_uses_a_file_here(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME, placer=Sink(), use_tool="count_rows")
    for tool in tools:
        assert "place_upload" not in tool.description
    given = await call(tools, "create_upload_url", filename="a.csv", size_bytes=2)
    assert "place_upload" not in given["instructions"]
    assert "count_rows" in given["instructions"]
    looked = await call(tools, "get_upload", upload_id=given["upload_id"])
    assert "PUT the file" in looked["next_step"]


async def test_a_file_is_used_once_and_charged_once(made: Made) -> None:
    sink = Sink()
    tools = upload_tools(made.service, principal=ME, placer=sink)
    given = await call(tools, "create_upload_url", filename="a.csv", size_bytes=5)
    early = await call(tools, "place_upload", upload_id=given["upload_id"])
    assert (early["error_category"], early["state"]) == ("invalid_input", "pending")
    assert made.charged == []
    await made.put(given, b"1;2;3")
    first = await call(tools, "place_upload", upload_id=given["upload_id"])
    again = await call(tools, "place_upload", upload_id=given["upload_id"])
    assert first["result"] == again["result"] == {"path": None, "bytes_written": 5}
    assert first["sha256"] == sha256(b"1;2;3")
    assert [first["replayed"], again["replayed"]] == [False, True]
    assert sink.calls == 1
    assert made.charged == [given["upload_id"]]
    looked = await call(tools, "get_upload", upload_id=given["upload_id"])
    assert looked["state"] == "placed"


async def test_an_unknown_outcome_is_told_apart_and_settled_by_the_next_call(made: Made) -> None:
    sink = Sink(fails=UploadOutcomeUnknownError("placing"))
    tools = upload_tools(made.service, principal=ME, placer=sink)
    given = await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    await made.put(given, b"x")
    unknown = await call(tools, "place_upload", upload_id=given["upload_id"])
    assert (unknown["error_category"], unknown["state"]) == ("file_transfer", "placing")
    assert "Do not PUT again" in unknown["error"]
    assert "place_upload with the same upload_id" in unknown["next_step"]
    sink.inspected = {"rows": 1}
    settled = await call(tools, "place_upload", upload_id=given["upload_id"])
    assert settled["result"] == {"rows": 1}
    assert (sink.calls, sink.inspections) == (1, 1)


async def test_a_standing_wait_ends_when_the_bytes_land(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    given = await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    results: list[dict[str, Any]] = []

    async def wait() -> None:
        results.append(
            await call(tools, "get_upload", upload_id=given["upload_id"], wait_seconds=50)
        )

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await made.put(given, b"x")
    assert results[0]["state"] == "stored"


async def test_a_wait_for_nothing_ends_too(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    given = await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    looked = await call(tools, "get_upload", upload_id=given["upload_id"], wait_seconds=1)
    assert looked["state"] == "pending"


@pytest.mark.parametrize(
    ("arguments", "category"),
    [
        ({}, "invalid_input"),
        ({"filename": "a.csv"}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": -1}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": 1.5}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": True}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": "5"}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": 1 << 63}, "size_limit"),
        ({"filename": 5, "size_bytes": 1}, "invalid_input"),
        ({"filename": None, "size_bytes": 1}, "invalid_input"),
        ({"filename": "", "size_bytes": 1}, "invalid_input"),
        ({"filename": "../a.csv", "size_bytes": 1}, "invalid_input"),
        ({"filename": "a\x00.csv", "size_bytes": 1}, "invalid_input"),
        ({"filename": "a\u202evsc.csv", "size_bytes": 1}, "invalid_input"),
        ({"filename": "a" * 10_000 + ".csv", "size_bytes": 1}, "invalid_input"),
        ({"filename": "a.exe", "size_bytes": 1}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": 1, "sha256": "g" * 64}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": 1, "sha256": "a" * 63}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": 1, "path": "/x"}, "invalid_input"),
        ({"filename": "a.csv", "size_bytes": 1, "workspace": "green"}, "invalid_input"),
    ],
)
async def test_a_wrong_declaration_gets_a_clear_answer_and_issues_nothing(
    made: Made, arguments: dict[str, Any], category: str
) -> None:
    tools = upload_tools(made.service, principal=ME)
    failed = await call(tools, "create_upload_url", **arguments)
    assert failed["error_category"] == category
    assert made.service.tally().changes == {}


async def test_a_refused_extension_says_which_are_allowed(tmp_path: Path) -> None:
    made = Made(tmp_path, allowed_extensions=frozenset({".csv", ".gz", ".a"}))
    tools = upload_tools(made.service, principal=ME)
    failed = await call(tools, "create_upload_url", filename="a.exe", size_bytes=1)
    assert failed["allowed_extensions"] == [".a", ".csv", ".gz"]
    assert "allowed_extensions" in failed["next_step"]
    pathlike = await call(tools, "create_upload_url", filename="a/b.csv", size_bytes=1)
    assert "allowed_extensions" not in pathlike  # its extension is not what is wrong


@pytest.mark.parametrize("tool", ["get_upload", "revoke_upload", "place_upload"])
@pytest.mark.parametrize("upload_id", ["0" * 32, "../x", "\x00", "x" * 64])
async def test_an_id_that_names_nothing_is_not_found(made: Made, tool: str, upload_id: str) -> None:
    tools = upload_tools(made.service, principal=ME, placer=Sink())
    failed = await call(tools, tool, upload_id=upload_id)
    assert failed["error_category"] == "not_found"
    assert failed["next_step"]


async def test_a_session_of_another_workspace_is_not_found(made: Made) -> None:
    mine = upload_tools(made.service, principal=ME, placer=Sink())
    theirs = upload_tools(made.service, principal=lambda _context: FOREIGN, placer=Sink())
    given = await call(mine, "create_upload_url", filename="a.csv", size_bytes=1)
    await made.put(given, b"x")
    for tool in ("get_upload", "revoke_upload", "place_upload"):
        failed = await call(theirs, tool, upload_id=given["upload_id"])
        assert failed["error_category"] == "not_found"
    assert (await call(mine, "get_upload", upload_id=given["upload_id"]))["state"] == "stored"


async def test_a_quota_says_what_frees_a_place(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    opened = [
        await call(tools, "create_upload_url", filename="a.csv", size_bytes=1) for _ in range(4)
    ]
    assert [one.get("error_category") for one in opened] == [None, None, None, "permission_denied"]
    assert "revoke" in opened[3]["next_step"]
    revoked = await call(tools, "revoke_upload", upload_id=opened[0]["upload_id"])
    assert revoked["state"] == "revoked"
    assert "url" in await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    gone = await call(tools, "get_upload", upload_id=opened[0]["upload_id"])
    assert gone["state"] == "revoked"


async def test_a_rate_limit_says_when_to_come_again(tmp_path: Path) -> None:
    made = Made(tmp_path, creates_per_minute=1)
    await made.store.migrate()
    tools = upload_tools(made.service, principal=ME)
    await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    failed = await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    assert failed["error_category"] == "permission_denied"
    assert 1 <= failed["retry_after_seconds"] <= 60
    await made.store.close()


async def test_a_failed_attempt_says_why(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    given = await call(tools, "create_upload_url", filename="a.csv", size_bytes=5)
    with pytest.raises(Exception, match="not the declared file"):
        await made.put(given, b"too long")
    looked = await call(tools, "get_upload", upload_id=given["upload_id"])
    assert looked["state"] == "failed"
    assert "not the declared file" in looked["reason"]
    assert "sha256" not in looked


async def test_a_probe_tells_whether_a_put_arrives(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    first = await call(tools, "check_transfer")
    assert (first["put"], first["host"]) == ("not_tried", "files.example.com")
    assert first["max_size_bytes"] == 1 << 30
    second = await call(tools, "check_transfer")
    assert second["put"] == "not_arrived"
    assert "files.example.com" in second["instructions"]
    await made.put(second["probe"], b"")
    third = await call(tools, "check_transfer")
    assert third["put"] == "arrived"
    assert "probe" not in third
    # None of the probes is left to count against the quota.
    for _ in range(3):
        assert "url" in await call(tools, "create_upload_url", filename="a.csv", size_bytes=1)
    full = await call(tools, "check_transfer")
    assert "probe" not in full
    assert "No probe could be opened" in full["instructions"]


async def test_a_probe_is_known_to_every_replica_and_only_to_its_caller(made: Made) -> None:
    here, there = (upload_tools(made.service, principal=ME) for _ in range(2))
    other = upload_tools(made.service, principal=FOREIGN)
    first = await call(here, "check_transfer")
    assert (await call(other, "check_transfer"))["put"] == "not_tried"
    await made.put(first["probe"], b"")
    assert (await call(there, "check_transfer"))["put"] == "arrived"
    assert (await call(here, "check_transfer"))["put"] == "not_tried"  # told already


async def test_a_probe_that_fails_or_still_arrives_is_told_apart(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    first = await call(tools, "check_transfer")
    with pytest.raises(Exception, match="not the declared file"):
        await made.put(first["probe"], b"no probe is this long")
    second = await call(tools, "check_transfer")
    assert second["put"] == "failed"
    ends = anyio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await ends.wait()
        async for chunk in chunked(b""):
            yield chunk

    real = made.service.get

    async def get(principal: Principal, upload_id: str, wait_s: float = 0.0) -> UploadSession:
        if wait_s:
            ends.set()
        return await real(principal, upload_id, wait_s)

    session = await made.service.get(ME, second["probe"]["upload_id"])
    attempt = await made.service.claim(session)
    made.service.get = get  # type: ignore[method-assign]  # the body ends once it is waited for
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(made.service.receive, attempt, slow())
            assert (await call(tools, "check_transfer"))["put"] == "arrived"


async def test_a_file_of_the_callers_is_no_probe(made: Made) -> None:
    tools = upload_tools(made.service, principal=ME)
    await call(tools, "check_transfer")
    given = await call(tools, "create_upload_url", filename="probe.csv", size_bytes=0)
    assert (await call(tools, "check_transfer"))["put"] == "not_arrived"
    looked = await call(tools, "get_upload", upload_id=given["upload_id"])
    assert looked["state"] == "pending"
    named = await call(tools, "create_upload_url", filename=PROBE_NAME, size_bytes=0)
    assert named["error_category"] == "invalid_input"


class Folder:
    """Files of an embedder that are no sandboxes, for the tools that work by path."""

    sandbox_id = None

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def place(
        self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
    ) -> Mapping[str, Any]:
        return await self.write(target, data)

    async def inspect(self, upload: StoredUpload, target: PlaceTarget) -> Mapping[str, Any] | None:
        return None

    async def write(self, target: PlaceTarget, data: AsyncIterator[bytes]) -> Mapping[str, Any]:
        body = b"".join([chunk async for chunk in data])
        self.files[target.path or ""] = body
        return {"bytes_written": len(body), "sha256": sha256(body), "sandbox_id": "folder"}

    async def read(
        self,
        target: PlaceTarget,
        max_bytes: int,
        consume: Callable[[AsyncIterator[bytes]], Awaitable[T]],
    ) -> tuple[T, Mapping[str, Any]]:
        found = await consume(chunked(self.files[target.path or ""]))
        return found, {"sandbox_id": "folder"}


def tools_of(
    made: Made, folder: Folder, policy: Callable[[Any], FetchPolicy] | None = None
) -> tuple[UploadTool, ...]:
    async def service(_context: Context) -> UploadService:
        return made.service

    more: dict[str, Any] = {} if policy is None else {"fetch_policy": policy}
    return backend_tools(
        Backend(service=service, principal=lambda _: ME, files=lambda _: folder, **more)
    )


async def test_a_download_is_declared_and_staged_whatever_its_name(made: Made) -> None:
    folder = Folder()
    name = "/a/evil\u202e\n" + "x" * 100 + ".exe"  # an extension that uploads may not have
    folder.files[name] = b"0123456789"
    given = await call(tools_of(made, folder), "create_download_url", path=name)
    assert (given["size_bytes"], given["sha256"]) == (10, sha256(b"0123456789"))
    assert given["method"] == "GET"
    assert given["headers"]["Authorization"] not in given["url"] + given["instructions"]
    # It is no upload: what would be said of its size and next step means another thing.
    tools = tools_of(made, folder)
    looked = await call(tools, "get_upload", upload_id=given["download_id"])
    assert looked["error_category"] == "not_found"
    ended = await call(tools, "revoke_upload", upload_id=given["download_id"])
    assert ended["state"] == "revoked"


@pytest.mark.parametrize("path", ["", "a", "/../a", "/a\x00", "/a/"])
@pytest.mark.parametrize("tool", ["place_upload", "create_download_url", "fetch_url"])
async def test_a_path_is_checked_before_anything_is_touched(
    made: Made, tool: str, path: str
) -> None:
    folder = Folder()
    more = {"place_upload": {"upload_id": "0" * 32}, "fetch_url": {"url": "https://example.com/"}}
    failed = await call(tools_of(made, folder), tool, path=path, **more.get(tool, {}))
    assert failed["error_category"] == "invalid_input"
    assert folder.files == {}


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "https://127.0.0.1/", "https://169.254.169.254/", "file:///etc/passwd"],
)
async def test_a_link_that_is_not_public_is_not_fetched(made: Made, url: str) -> None:
    folder = Folder()
    failed = await call(tools_of(made, folder), "fetch_url", url=url, path="/x")
    assert failed["error_category"] == "permission_denied"
    assert folder.files == {}


@asynccontextmanager
async def one_link() -> AsyncIterator[Callable[[Any], FetchPolicy]]:
    """Serve `hello` at every public link, and return the policy that finds it."""

    async def answer(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.215.14"]

    async def connect(_address: str, _port: int, _context: ssl.SSLContext, _name: str) -> Any:
        return await asyncio.open_connection("127.0.0.1", port)

    async with server:
        yield lambda _config: FetchPolicy(max_bytes=5, resolver=resolve, connect=connect)


async def test_a_public_link_is_fetched_into_a_file(made: Made) -> None:
    folder = Folder()
    async with one_link() as policy:
        done = await call(
            tools_of(made, folder, policy), "fetch_url", url="https://example.com/a", path="/x"
        )
    assert folder.files == {"/x": b"hello"}
    assert done["sha256"] == sha256(b"hello")


@pytest.mark.parametrize(
    ("taken", "error"), [(True, UploadTimeoutError), (False, TransferTimeoutError)]
)
async def test_a_sandbox_that_took_a_link_and_fell_silent_may_have_written_it(
    made: Made, taken: bool, error: type[AgentSandboxError]
) -> None:
    class Silent(Folder):
        async def write(self, target: PlaceTarget, data: AsyncIterator[bytes]) -> Mapping[str, Any]:
            async for _ in data if taken else chunked(b""):
                pass
            raise TransferTimeoutError

    async with one_link() as policy:
        tools = tools_of(made, Silent(), policy)
        failed = await call(tools, "fetch_url", url="https://example.com/a", path="/x")
    assert (failed["error_category"], failed["error"]) == ("timeout", error.text)
