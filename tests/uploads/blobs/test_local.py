"""What only the local directory promises: modes, temporary files, and faults of the disk."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_sandbox.errors import UploadStorageError, UploadStorageFullError
from agent_sandbox.uploads.blobs import local
from agent_sandbox.uploads.blobs.local import LocalBlobs

KEY = "ab/cd"


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


async def put(writer: local.LocalWriter, data: bytes) -> None:
    await writer.write([data])
    await writer.commit()


async def test_everything_is_private_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "b")
    writer = await blobs.begin(KEY, 1)
    await writer.write([b"x"])
    await writer.commit()
    assert files(tmp_path / "b") == {KEY}
    for path in (tmp_path / "b").rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


async def test_short_writes_are_invisible(tmp_path: Path, monkeypatch: Any) -> None:
    real = os.write
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, bytes(parts[0][:3])))
    blobs = LocalBlobs(tmp_path)
    writer = await blobs.begin(KEY, 10)
    await writer.write([b"0123456789"])
    await writer.commit()
    assert (tmp_path / KEY).read_bytes() == b"0123456789"


async def test_more_chunks_than_one_call_takes_are_written_in_order(tmp_path: Path) -> None:
    parts = [b"%d," % number for number in range(3_000)]
    writer = await LocalBlobs(tmp_path).begin(KEY, 1)
    await writer.write(parts)
    await writer.commit()
    assert (tmp_path / KEY).read_bytes() == b"".join(parts)


def slab(size: int, *, at: int = 0) -> memoryview:
    """Return bytes that can be told apart, `at` bytes behind a page's begin."""
    memory = memoryview(mmap.mmap(-1, at + size))[at:]
    memory[:] = os.urandom(size)
    return memory


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("rest", [0, 1, 4_095, 4_097])
async def test_slabs_are_written_past_the_page_cache_or_else_the_usual_way(
    tmp_path: Path, at: int, rest: int
) -> None:
    first, last = slab(1 << 20, at=at), slab(8_192 + rest, at=at)  # those at 1 are refused
    writer = await LocalBlobs(tmp_path).begin(KEY, 1)
    for parts in ([first], [b"between", b"two"], [first], [last]):
        await writer.write(parts)
    await writer.commit()
    assert (tmp_path / KEY).read_bytes() == b"".join([first, b"betweentwo", first, last])


async def test_a_short_write_past_the_page_cache_is_invisible(
    tmp_path: Path, monkeypatch: Any
) -> None:
    real = os.write
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, parts[0][:5_000]))
    data = slab(20_480)
    writer = await LocalBlobs(tmp_path).begin(KEY, len(data))
    await writer.write([data])
    await writer.commit()
    assert (tmp_path / KEY).read_bytes() == data


async def test_a_file_is_synced_before_it_has_its_name_and_its_directory_after(
    tmp_path: Path, monkeypatch: Any
) -> None:
    blobs = LocalBlobs(tmp_path)
    (tmp_path / "ab").mkdir()
    writer = await blobs.begin(KEY, 1)
    await writer.write([b"x"])
    done: list[str] = []
    sync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def linked(source: Path, target: Path) -> None:
        done.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    await writer.commit()
    assert done == ["file", "link", "directory"]


async def test_a_file_that_is_deleted_during_the_listing_is_passed_over(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    names = {"ab/1", "ab/2", "ab/3"}
    for name in names:
        await put(await blobs.begin(name, 1), b"x")
    listed = blobs._older(time.time() + 1)
    first = next(listed)
    [gone, last] = names - {first}
    await blobs.delete(gone)  # the names of the directory are read already
    assert list(listed) == [last]


async def test_what_is_not_ours_is_neither_listed_nor_in_the_way(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    await put(await blobs.begin(KEY, 1), b"x")
    (tmp_path / "lost+found").mkdir()  # the directory is a file system of its own
    (tmp_path / "lost+found" / "#123").touch()
    (tmp_path / "README").touch()
    (tmp_path / "ab" / "notes.txt").touch()
    (tmp_path / "ab" / "0123").mkdir()
    (tmp_path / "ab" / "4567").symlink_to(tmp_path / "README")
    assert [key async for key in blobs.list_orphans(-1)] == [KEY]


FAULTS = [
    ("writev", errno.ENOSPC, UploadStorageFullError),
    ("writev", errno.EDQUOT, UploadStorageFullError),
    ("writev", errno.EIO, UploadStorageError),
    ("fsync", errno.ENOSPC, UploadStorageFullError),
    ("fsync", errno.EIO, UploadStorageError),
    ("link", errno.ENOSPC, UploadStorageFullError),
    ("link", errno.EIO, UploadStorageError),
]


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
async def test_a_fault_past_the_page_cache_is_told_and_not_tried_again_for_ever(
    tmp_path: Path, monkeypatch: Any, number: int
) -> None:
    calls: list[object] = []

    def fails(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError(number, "a path that must not be shown")

    writer = await LocalBlobs(tmp_path).begin(KEY, 1)
    monkeypatch.setattr(os, "writev", fails)
    with pytest.raises(UploadStorageError):
        await writer.write([slab(4_096)])
    await writer.abort()
    assert len(calls) == (2 if number == errno.EINVAL else 1)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(("call", "number", "error"), FAULTS)
async def test_a_fault_of_the_disk_leaves_neither_object_nor_temporary_file(
    tmp_path: Path,
    monkeypatch: Any,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
    error: type[Exception],
) -> None:
    blobs = LocalBlobs(tmp_path)
    writer = await blobs.begin(KEY, 1)
    calls: list[object] = []

    def fails(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError(number, "a path that must not be shown")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(error) as refusal:
        await put(writer, b"x")
    await writer.abort()
    assert len(calls) == 1  # an fsync is never tried again
    assert refusal.value.__suppress_context__
    assert files(tmp_path) == set()
    assert caplog.messages == [f"uploads directory: {errno.errorcode[number]}"]


async def test_a_fault_of_closing_changes_nothing_that_the_sync_has_proved(
    tmp_path: Path, monkeypatch: Any
) -> None:
    blobs = LocalBlobs(tmp_path)
    stored, dropped = await blobs.begin(KEY, 1), await blobs.begin(KEY, 1)
    real = os.close

    def close(descriptor: int) -> None:
        real(descriptor)  # as the kernel does, whatever it says then
        raise OSError(errno.EIO, "disk")

    with monkeypatch.context() as patched:
        # The directory's own descriptor is closed the ordinary way.
        patched.setattr(local, "_sync_directory", lambda _path: None)
        patched.setattr(os, "close", close)
        await put(stored, b"x")
        await dropped.abort()
        reader = await blobs.open(KEY)
        assert reader is not None
        await reader.aclose()
    assert files(tmp_path) == {KEY}


async def test_a_file_whose_maker_is_cancelled_meanwhile_is_dropped_and_closed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    blobs = LocalBlobs(tmp_path)
    await put(await blobs.begin("ab/00", 1), b"x")
    opened: list[int] = []
    at_work, go_on = threading.Event(), threading.Event()
    real = os.open

    def open_late(*arguments: Any) -> int:
        opened.append(real(*arguments))
        at_work.set()
        assert go_on.wait(10)
        return opened[-1]

    monkeypatch.setattr(os, "open", open_late)
    for begin in (blobs.begin(KEY, 1), blobs.open("ab/00")):
        at_work.clear()
        go_on.clear()
        task = asyncio.ensure_future(begin)
        assert await asyncio.to_thread(at_work.wait, 10)
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened[-1])
    assert files(tmp_path) == {"ab/00"}


async def test_a_reader_is_closed_only_after_the_thread_that_reads_has_ended(
    tmp_path: Path, monkeypatch: Any
) -> None:
    blobs = LocalBlobs(tmp_path)
    await put(await blobs.begin(KEY, 1), b"x")
    reader = await blobs.open(KEY)
    assert reader is not None
    at_work, go_on = threading.Event(), threading.Event()
    found: list[bytes] = []
    real = os.read

    def read_late(descriptor: int, size: int) -> bytes:
        at_work.set()
        assert go_on.wait(10)
        found.append(real(descriptor, size))  # of another file, had the number been given away
        return found[-1]

    monkeypatch.setattr(os, "read", read_late)

    async def read() -> None:
        try:
            async for _ in reader:
                pass
        finally:
            await reader.aclose()

    task = asyncio.ensure_future(read())
    assert await asyncio.to_thread(at_work.wait, 10)
    task.cancel()
    await asyncio.wait([task], timeout=0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert found == [b"x"]


async def test_a_directory_that_was_emptied_takes_files_again_and_a_missing_one_none(
    tmp_path: Path,
) -> None:
    root = tmp_path / "blobs"
    blobs = LocalBlobs(root)
    root.rename(tmp_path / "away")
    with pytest.raises(UploadStorageError):
        await blobs.begin(KEY, 1)
    root.mkdir(0o700)  # as another disk that is mounted here
    await put(await blobs.begin(KEY, 1), b"x")
    assert files(root) == {KEY}


async def test_a_directory_that_cannot_be_synced_unpublishes(
    tmp_path: Path, monkeypatch: Any
) -> None:
    blobs = LocalBlobs(tmp_path)
    (tmp_path / "ab").mkdir()
    writer = await blobs.begin(KEY, 1)
    await writer.write([b"x"])

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(local, "_sync_directory", fails)
    with pytest.raises(UploadStorageError):
        await writer.commit()
    assert files(tmp_path) == set()


async def test_what_a_crash_leaves_is_listed_by_age_and_can_be_deleted(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    writer = await blobs.begin(KEY, 1)
    await writer.write([b"x"])
    [left] = [one async for one in blobs.list_orphans(-1)]
    assert left.startswith("incoming/")
    await blobs.delete(left)
    assert [one async for one in blobs.list_orphans(-1)] == []
    await writer.abort()
