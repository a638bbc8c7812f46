"""The public E2B SDK is a client of `agent-sandbox serve`: every file call, sync and async."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
)
from e2b.sandbox.filesystem.watch_handle import FilesystemEvent, FilesystemEventType
from tests.support.express import wait_until

BINARY = bytes(range(256)) * 5_000


@pytest.fixture
def sandbox(options: dict[str, Any]) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=120, metadata={"purpose": "sdk & more"}, **options)
    yield sandbox
    sandbox.kill()


@pytest.fixture
async def async_sandbox(options: dict[str, Any]) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(timeout=120, **options)
    yield sandbox
    await sandbox.kill()


def test_the_control_plane_serves_the_sdk(sandbox: Sandbox, options: dict[str, Any]) -> None:
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.metadata == {"purpose": "sdk & more"}
    listed = Sandbox.list(SandboxQuery(metadata={"purpose": "sdk & more"}), **options)
    assert sandbox.sandbox_id in [one.sandbox_id for one in listed.next_items()]
    sandbox.set_timeout(600)
    assert sandbox.get_info().end_at > info.end_at
    again = Sandbox.connect(sandbox.sandbox_id, timeout=1, **options)
    assert again.get_info().end_at > info.end_at, "connecting shortened the life"
    again.files.write("a", "b")
    assert sandbox.files.read("a") == "b"
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id, **options)


def test_a_pause_is_refused_in_plain_words(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match=r"501: .*does not support this operation"):
        sandbox.pause()
    assert sandbox.is_running(), "nothing was done"


def test_every_kind_of_content_goes_up_and_comes_down(sandbox: Sandbox) -> None:
    files = sandbox.files
    written = files.write("hello.txt", "hällo\n")
    assert (written.name, written.path, written.type) == (
        "hello.txt",
        "/home/user/hello.txt",
        FileType.FILE,
    )
    assert files.read("hello.txt") == "hällo\n"
    assert files.read("~/hello.txt", gzip=True) == "hällo\n"
    sources: dict[str, Any] = {
        "bytes": BINARY,
        "io": io.BytesIO(BINARY),
        "iterator": (BINARY[at : at + 10_000] for at in range(0, len(BINARY), 10_000)),
    }
    for name, data in sources.items():
        files.write(f"/deep/er/{name}", data)
        assert files.read(f"/deep/er/{name}", format="bytes") == BINARY
        with files.read(f"/deep/er/{name}", format="stream") as stream:
            assert b"".join(stream) == BINARY
    files.write("raw", BINARY, use_octet_stream=True, user="root")
    files.write("squeezed", BINARY, gzip=True, metadata={"Colour": "blue"})
    assert files.read("raw", format="bytes", gzip=True, user="root") == BINARY
    assert files.read("squeezed", format="bytes") == BINARY
    assert files.get_info("squeezed").metadata == {"colour": "blue"}
    many = files.write_files([{"path": "m/1", "data": "one"}, {"path": "/tmp/ü 2", "data": b"2"}])
    assert [one.path for one in many] == ["/home/user/m/1", "/tmp/ü 2"]
    assert files.read("/tmp/ü 2") == "2"
    assert files.write("empty", "").path == "/home/user/empty"
    assert files.read("empty", format="bytes") == b""


def test_names_are_listed_looked_at_moved_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    assert files.make_dir("/w/a/b")
    assert not files.make_dir("/w/a/b")
    files.write("/w/a/f", "12345")
    assert [one.path for one in files.list("/w")] == ["/w/a"]
    assert [one.path for one in files.list("/w", depth=3)] == ["/w/a", "/w/a/b", "/w/a/f"]
    info = files.get_info("/w/a/f")
    assert (info.size, info.mode, info.owner, info.type) == (5, 0o644, "user", FileType.FILE)
    assert info.permissions == "-rw-r--r--"
    assert files.get_info("/w/a").type is FileType.DIR
    assert files.exists("/w/a/f")
    assert files.rename("/w/a/f", "/w/new/g").path == "/w/new/g"
    assert not files.exists("/w/a/f")
    files.remove("/w")
    files.remove("/w")
    assert not files.exists("/w")
    calls: list[Callable[[str], object]] = [files.read, files.list, files.get_info]
    for call in calls:
        with pytest.raises(FileNotFoundException):
            call("/w/a/f")
    calls += [files.remove]
    for call in calls:
        with pytest.raises(InvalidArgumentException):
            call("/w/../w")


def test_a_polled_watch_tells_what_happened(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("/w")
    watch = sandbox.files.watch_dir("/w", recursive=True, include_entry=True)
    sandbox.files.write("/w/f", "1")
    sandbox.files.write("/w/f", "2")
    sandbox.files.make_dir("/w/sub")
    sandbox.files.write("/w/sub/g", "3")
    sandbox.files.rename("/w/f", "/w/h")
    sandbox.files.remove("/w/sub")
    events: list[FilesystemEvent] = []

    def gone() -> bool:
        events.extend(watch.get_new_events())
        return bool(events) and events[-1].type is FilesystemEventType.REMOVE

    wait_until(gone)
    told = [(one.type, one.name) for one in events]
    for expected in [
        (FilesystemEventType.CREATE, "f"),
        (FilesystemEventType.WRITE, "f"),
        (FilesystemEventType.CREATE, "sub"),
        (FilesystemEventType.CREATE, "sub/g"),
        (FilesystemEventType.WRITE, "sub/g"),
        (FilesystemEventType.RENAME, "f"),
        (FilesystemEventType.CREATE, "h"),
        (FilesystemEventType.REMOVE, "sub"),
    ]:
        assert expected in told
    assert told.count((FilesystemEventType.CREATE, "f")) == 1
    assert not [name for _, name in told if "agent-sandbox" in name]
    assert any(one.entry and one.entry.path == "/w/h" for one in events)
    watch.stop()


async def test_the_async_sdk_does_the_same(async_sandbox: AsyncSandbox) -> None:
    files = async_sandbox.files
    assert await async_sandbox.is_running()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(BINARY), 100_000):
            yield BINARY[at : at + 100_000]

    await files.write("text", "hällo")
    await files.write("bytes", BINARY)
    await files.write("io", io.BytesIO(BINARY))
    await files.write("stream", chunks())
    await files.write_files([{"path": "1", "data": "a"}, {"path": "2", "data": b"b"}])
    assert await files.read("text") == "hällo"
    for name in ("bytes", "io", "stream"):
        assert await files.read(name, format="bytes") == BINARY
    async with await files.read("bytes", format="stream") as stream:
        assert b"".join([chunk async for chunk in stream]) == BINARY
    assert await files.make_dir("d")
    assert [one.name for one in await files.list("~")] == [
        "1", "2", "bytes", "d", "io", "stream", "text",
    ]  # fmt: skip
    assert (await files.get_info("text")).size == 6
    assert (await files.rename("text", "d/text")).path == "/home/user/d/text"
    assert await files.exists("d/text")
    await files.remove("d")
    assert not await files.exists("d/text")


async def test_an_async_watch_tells_what_happened(async_sandbox: AsyncSandbox) -> None:
    events: asyncio.Queue[FilesystemEvent] = asyncio.Queue()
    ended: asyncio.Queue[Exception | None] = asyncio.Queue()
    await async_sandbox.files.watch_dir("~", events.put_nowait, ended.put_nowait)
    await async_sandbox.files.write("f", "1")
    async with asyncio.timeout(10):
        assert [(await events.get()).type for _ in range(2)] == [
            FilesystemEventType.CREATE,
            FilesystemEventType.WRITE,
        ]
        await async_sandbox.kill()
        assert await ended.get() is not None, "the end of the sandbox ends the watch with an error"


async def test_an_async_watch_can_be_stopped(async_sandbox: AsyncSandbox) -> None:
    events: asyncio.Queue[FilesystemEvent] = asyncio.Queue()
    watch = await async_sandbox.files.watch_dir("~", events.put_nowait, recursive=True)
    await watch.stop()  # type: ignore[no-untyped-call]  # the SDK leaves it so
    await async_sandbox.files.write("f", "1")
    assert events.empty()
