"""The SDK against the real Express: embedded on a unix socket, and on a TCP port."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.client.conftest import Lives, Subject, run
from tests.support.express import Service, served

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client.providers import local
from agent_sandbox.models import (
    ArgumentError,
    FileConflictError,
    FileEventType,
    FileKindError,
    FileMissingError,
    FileSizeLimitError,
    FileType,
    SandboxNotFoundError,
    TextEncodingError,
)

RANDOM = os.urandom(1_048_576)


@pytest.fixture(scope="module", autouse=True)
def local_service() -> Iterator[None]:
    yield
    local.stop()


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("express")
    keys = folder / "keys"
    keys.write_text("key-for-tests\n")
    with served(folder, "--api-key-file", str(keys), api_key="key-for-tests") as service:
        yield service


@pytest.fixture(params=["local", "express"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "local":
        return {"provider": "local"}
    return {"api_url": request.getfixturevalue("tcp").url, "api_key": "key-for-tests"}


@pytest.fixture
async def subject(settings: dict[str, Any], surface: str) -> AsyncIterator[Subject]:
    """A fresh sandbox on each surface and provider; killed at the end."""
    if surface == "async":
        async with await agent_sandbox.Sandbox.create(**settings) as sandbox:
            yield Subject(sandbox, sandbox._client._slot._made[-1], blocking=False)
    else:
        twin = await anyio.to_thread.run_sync(lambda: agent_sandbox.sync.Sandbox.create(**settings))
        try:
            yield Subject(twin, twin._client._slot._made[-1], blocking=True)
        finally:
            await anyio.to_thread.run_sync(lambda: twin.__exit__(None, None, None))


@pytest.mark.parametrize("data", [b"", b"\x00\xff", b"a\r\nb\x00", RANDOM], ids=len)
async def test_bytes_come_back_as_they_went(subject: Subject, data: bytes) -> None:
    written = await subject.files("write", "/tmp/deep/er/a.bin", data)
    assert written.bytes_written == len(data)
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    assert written.path == "/tmp/deep/er/a.bin"
    assert await subject.files("read_bytes", "/tmp/deep/er/a.bin", max_bytes=len(data)) == data
    assert await subject.files("read_bytes", "/tmp/deep/er/a.bin") == data
    assert b"".join(await subject.files("stream", "/tmp/deep/er/a.bin")) == data
    assert subject.busy() == 0


@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "file", "iterator", "text file"])
async def test_every_kind_of_data_is_written(subject: Subject, kind: str, tmp_path: Path) -> None:
    data = b"0123456789" * 100_000
    sources: dict[str, Callable[[], Any]] = {
        "bytearray": lambda: bytearray(data),
        "memoryview": lambda: memoryview(data),
        "file": lambda: io.BytesIO(data),
        "iterator": lambda: iter([data[:10], b"", bytearray(data[10:20]), memoryview(data)[20:]]),
        "text file": lambda: io.StringIO(data.decode()),
    }
    written = await subject.files("write", "/tmp/a", sources[kind]())
    assert (written.bytes_written, written.sha256) == (
        len(data),
        hashlib.sha256(data).hexdigest(),
    )
    assert await subject.files("read_bytes", "/tmp/a") == data


async def test_an_async_iterator_is_written_by_the_async_surface_only(subject: Subject) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"", b"bc"):
            await anyio.lowlevel.checkpoint()
            yield piece

    if subject.blocking:
        with pytest.raises(TypeError):
            await subject.files("write", "/tmp/a", pieces())
        assert not await subject.files("exists", "/tmp/a")
    else:
        await subject.files("write", "/tmp/a", pieces())
        assert await subject.files("read_bytes", "/tmp/a", max_bytes=3) == b"abc"


async def test_text_is_utf8_both_ways(subject: Subject) -> None:
    await subject.files("write", "/tmp/t", "naïve \u202e 文件 \x00")
    assert await subject.files("read_text", "/tmp/t") == "naïve \u202e 文件 \x00"
    await subject.files("write", "/tmp/t", b"\xff")
    with pytest.raises(TextEncodingError):
        await subject.files("read_text", "/tmp/t")
    with pytest.raises(TextEncodingError):
        await subject.files("write", "/tmp/t", "\ud800")
    assert await subject.files("read_bytes", "/tmp/t") == b"\xff"


async def test_a_failing_source_leaves_the_old_file_and_is_raised_as_it_is(
    subject: Subject,
) -> None:
    class OwnError(Exception):
        pass

    def pieces() -> Iterator[bytes]:
        yield b"x" * 200_000
        raise OwnError

    await subject.files("write", "/tmp/a", b"old")
    with pytest.raises(OwnError):
        await subject.files("write", "/tmp/a", pieces())
    assert await subject.files("read_bytes", "/tmp/a") == b"old"
    assert [entry.name for entry in await subject.files("list", "/tmp")] == ["a"]
    assert subject.busy() == 0


async def test_the_bound_is_kept(subject: Subject) -> None:
    await subject.files("write", "/tmp/a", RANDOM)
    with pytest.raises(FileSizeLimitError) as caught:
        await subject.files("read_bytes", "/tmp/a", max_bytes=len(RANDOM) - 1)
    assert caught.value.limit == len(RANDOM) - 1
    with pytest.raises(FileSizeLimitError):
        await subject.files("stream", "/tmp/a", max_bytes=1)
    assert subject.busy() == 0


async def test_a_file_goes_up_and_down(subject: Subject, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_bytes(RANDOM * 3)
    written = await subject.files("upload", here, "/home/user/big")
    assert written.bytes_written == 3 * len(RANDOM)
    assert await subject.files("download", "/home/user/big", there) == 3 * len(RANDOM)
    assert there.read_bytes() == here.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["here", "there"]


async def test_a_download_over_its_bound_leaves_nothing(subject: Subject, tmp_path: Path) -> None:
    await subject.files("write", "/tmp/a", RANDOM)
    goal = tmp_path / "goal"
    goal.write_bytes(b"old")
    inode = goal.stat().st_ino
    with pytest.raises(FileSizeLimitError):
        await subject.files("download", "/tmp/a", goal, max_bytes=1000)
    assert (goal.read_bytes(), goal.stat().st_ino) == (b"old", inode)
    assert os.listdir(tmp_path) == ["goal"]


async def test_a_replaced_local_file_keeps_its_mode(subject: Subject, tmp_path: Path) -> None:
    await subject.files("write", "/tmp/a", b"new")
    goal = tmp_path / "goal"
    goal.write_bytes(b"old")
    goal.chmod(0o751)
    await subject.files("download", "/tmp/a", str(goal))
    assert (goal.read_bytes(), goal.stat().st_mode & 0o777) == (b"new", 0o751)


@pytest.mark.parametrize("what", ["missing", "directory", "fifo"])
async def test_only_a_regular_local_file_is_uploaded(
    subject: Subject, tmp_path: Path, what: str
) -> None:
    source = tmp_path / "source"
    if what == "directory":
        source.mkdir()
    elif what == "fifo":
        os.mkfifo(source)
    with anyio.fail_after(10), pytest.raises(OSError):  # noqa: PT011 - which one is the system's
        await subject.files("upload", source, "/tmp/a")
    assert not await subject.files("exists", "/tmp/a")


async def test_the_tree_can_be_changed_and_looked_at(subject: Subject) -> None:
    files = subject.files
    assert await files("make_dir", "/tmp/d/e") is True
    assert await files("make_dir", "/tmp/d/e/") is False
    await files("write", "/tmp/d/f", b"12345")
    with pytest.raises(FileConflictError):
        await files("make_dir", "/tmp/d/f")
    assert await files("exists", "/tmp/d/f") is True
    assert await files("exists", "/tmp/d/g") is False
    info = await files("stat", "/tmp/d/f")
    assert (info.name, info.path, info.type, info.size_bytes) == (
        "f",
        "/tmp/d/f",
        FileType.FILE,
        5,
    )
    assert info.mode & 0o777 == 0o644
    assert datetime.now(UTC) - info.modified_at < timedelta(minutes=5)
    assert [(e.path, e.type) for e in await files("list", "/tmp/d")] == [
        ("/tmp/d/e", FileType.DIRECTORY),
        ("/tmp/d/f", FileType.FILE),
    ]
    assert {e.path for e in await files("list", "/tmp", depth=2)} == {
        "/tmp/d",
        "/tmp/d/e",
        "/tmp/d/f",
    }
    moved = await files("rename", "/tmp/d/f", "/tmp/d/g")
    assert moved.path == "/tmp/d/g"
    assert not await files("exists", "/tmp/d/f")
    await files("remove", "/tmp/d")
    assert not await files("exists", "/tmp/d")
    with pytest.raises(FileMissingError):
        await files("stat", "/tmp/d")


@pytest.mark.parametrize("method", ["read_bytes", "read_text", "stream", "stat", "list"])
async def test_a_missing_path_is_not_found(subject: Subject, method: str) -> None:
    with pytest.raises(FileMissingError):
        await subject.files(method, "/tmp/none")


async def test_a_directory_is_no_file_and_a_file_no_directory(subject: Subject) -> None:
    await subject.files("write", "/tmp/f", b"x")
    for method, *arguments in (
        ("read_bytes", "/tmp"),
        ("write", "/tmp", b"x"),
        ("list", "/tmp/f"),
        ("write", "/tmp/f/g", b"x"),
    ):
        with pytest.raises((FileKindError, FileConflictError)):
            await subject.files(method, *arguments)


async def test_changes_are_seen_from_the_moment_a_watch_is_entered(subject: Subject) -> None:
    sandbox = subject.sandbox
    seen = []
    if subject.blocking:

        def watch() -> None:
            with sandbox.files.watch("/tmp") as events:
                sandbox.files.write("/tmp/new", b"x")
                for event in events:
                    seen.append((event.name, event.type))
                    if event.type is FileEventType.CREATE:
                        break

        await anyio.to_thread.run_sync(watch)
    else:
        async with sandbox.files.watch("/tmp") as events:
            await sandbox.files.write("/tmp/new", b"x")
            async for event in events:
                seen.append((event.name, event.type))
                if event.type is FileEventType.CREATE:
                    break
    assert seen[-1] == ("new", FileEventType.CREATE)
    assert subject.busy() == 0


async def test_a_watch_of_nothing_is_not_found(subject: Subject) -> None:
    with anyio.fail_after(10), pytest.raises(FileMissingError):
        await subject.files("watch", "/tmp/none")
    assert subject.busy() == 0


# --- Life and death ---------------------------------------------------------------------------


async def test_a_life_is_set_renewed_and_never_shortened_by_renewing(
    settings: dict[str, Any], surface: str
) -> None:
    async with Lives(surface, settings) as client:
        sandbox = await client.create(ttl_seconds=600, metadata={"who": "test"})
        assert await run(partial(sandbox.files.exists, "/tmp")) is True
        made = await run(sandbox.info)
        assert made.sandbox_id == sandbox.sandbox_id
        assert made.metadata == {"who": "test"}
        assert made.state == "running"
        assert made.end_at - made.started_at == pytest.approx(
            timedelta(seconds=600), abs=timedelta(seconds=2)
        )
        await run(partial(sandbox.renew, 10))
        assert (await run(sandbox.info)).end_at == made.end_at
        await run(partial(sandbox.renew, 700))
        longer = await run(sandbox.info)
        assert longer.end_at > made.end_at + timedelta(seconds=50)
        found = await client.connect(sandbox.sandbox_id, ttl_seconds=1000)
        assert found.sandbox_id == sandbox.sandbox_id
        renewed = await run(found.info)
        assert renewed.end_at > longer.end_at + timedelta(seconds=200)
        await run(partial(found.set_ttl, 60))
        assert (await client.info(found.sandbox_id)).end_at < made.end_at
        await client.set_ttl(found.sandbox_id, 2000)
        assert (await client.info(found.sandbox_id)).end_at > renewed.end_at
        assert sandbox.sandbox_id in [info.sandbox_id for info in await client.list()]
        assert await run(sandbox.kill) is True
        assert await run(sandbox.kill) is False
        assert sandbox.sandbox_id not in [info.sandbox_id for info in await client.list()]
        other = await client.create()
        assert await client.kill(other.sandbox_id) is True
        assert await client.kill(other.sandbox_id) is False


async def test_an_ended_sandbox_is_not_found_by_every_call(subject: Subject) -> None:
    sandbox = subject.sandbox
    await (anyio.to_thread.run_sync(sandbox.kill) if subject.blocking else sandbox.kill())
    for method, *arguments in (
        ("read_bytes", "/tmp/a"),
        ("write", "/tmp/a", b"x"),
        ("list", "/tmp"),
        ("stream", "/tmp/a"),
        ("watch", "/tmp"),
    ):
        with pytest.raises(SandboxNotFoundError):
            await subject.files(method, *arguments)


@pytest.mark.parametrize("sandbox_id", ["none", "", "..", "../x", "a/b", "a?b", "x" * 200, "é", 5])
async def test_an_unknown_or_impossible_id_is_not_found(
    settings: dict[str, Any], surface: str, sandbox_id: Any
) -> None:
    async with Lives(surface, settings) as client:
        for call in (client.connect, client.info):
            with pytest.raises(SandboxNotFoundError):
                await call(sandbox_id)
        with pytest.raises(SandboxNotFoundError):
            await client.set_ttl(sandbox_id, 60)
        assert await client.kill(sandbox_id) is False


@pytest.mark.parametrize("ttl", [0, -1, 86_401, True, 1.5, "60"])
async def test_a_ttl_out_of_range_is_refused(
    settings: dict[str, Any], surface: str, ttl: Any
) -> None:
    async with Lives(surface, settings) as client:
        with pytest.raises(ArgumentError):
            await client.create(ttl_seconds=ttl)
        with pytest.raises(ArgumentError):
            await client.connect("any", ttl_seconds=ttl)
        with pytest.raises(ArgumentError):
            await client.set_ttl("any", ttl)


async def test_a_connected_sandbox_lives_on_after_its_block_and_a_created_one_ends(
    settings: dict[str, Any], surface: str
) -> None:
    if surface == "async":
        async with await agent_sandbox.Sandbox.create(**settings) as made:
            async with await agent_sandbox.Sandbox.connect(made.sandbox_id, **settings) as found:
                await found.files.write("/tmp/a", b"x")
            assert await made.files.read_bytes("/tmp/a") == b"x"
        ids = [info.sandbox_id for info in await agent_sandbox.Sandbox.list(**settings)]
        assert made.sandbox_id not in ids
        return

    def blocking() -> None:
        of = agent_sandbox.sync.Sandbox
        with of.create(**settings) as made:
            with of.connect(made.sandbox_id, **settings) as found:
                found.files.write("/tmp/a", b"x")
            assert made.files.read_bytes("/tmp/a") == b"x"
            assert made.sandbox_id in [info.sandbox_id for info in of.list(**settings)]
        assert made.sandbox_id not in [info.sandbox_id for info in of.list(**settings)]

    await anyio.to_thread.run_sync(blocking)


async def test_a_wrong_key_is_refused(tcp: Service, surface: str) -> None:
    async with Lives(surface, {"api_url": tcp.url, "api_key": "wrong"}) as client:
        with pytest.raises(agent_sandbox.AgentSandboxError) as caught:
            await client.create()
        assert caught.value.code == "E5005"


async def test_both_surfaces_and_many_threads_share_one_embedded_service() -> None:
    made: list[str] = []

    def make() -> None:
        with agent_sandbox.sync.SandboxClient(provider="local") as client:
            made.append(client.create(ttl_seconds=60).sandbox_id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    seen = {info.sandbox_id for info in await agent_sandbox.Sandbox.list(provider="local")}
    assert len(made) == 8
    assert set(made) <= seen
