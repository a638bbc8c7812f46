"""One suite for a local directory and a real S3-compatible server."""

from __future__ import annotations

import os
import secrets
from typing import Any

import anyio
import obstore
import pytest
from obstore.store import S3Store
from tests.support.upload_parts import sha256

from agent_sandbox.errors import UploadError
from agent_sandbox.uploads.blobs import READ_BYTES, BlobStore
from agent_sandbox.uploads.blobs.s3 import S3Blobs

MIB = 1024 * 1024
SIZES = [0, 1, READ_BYTES, READ_BYTES + 1, 5 * MIB, 5 * MIB + 1, 16 * MIB + 3]


def key() -> str:
    return f"{'ab' * 16}/{secrets.token_hex(16)}"


async def stored(blobs: BlobStore, data: bytes, at: str | None = None) -> str:
    at = at or key()
    writer = await blobs.begin(at, len(data))
    for start in range(0, len(data), 256 * 1024):
        await writer.write([data[start : start + 256 * 1024]])
    await writer.commit()
    return at


async def read(blobs: BlobStore, at: str) -> bytes | None:
    reader = await blobs.open(at)
    if reader is None:
        return None
    chunks = [chunk async for chunk in reader]
    assert all(0 < len(chunk) <= READ_BYTES for chunk in chunks)
    assert sum(map(len, chunks)) == reader.size_bytes
    await reader.aclose()
    return b"".join(chunks)


async def orphans(blobs: BlobStore, older_than_s: float) -> list[str]:
    return [one async for one in blobs.list_orphans(older_than_s)]


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_committed_is_read_back(blobs: BlobStore, size: int) -> None:
    data = os.urandom(size)
    at = await stored(blobs, data)
    assert await blobs.head(at) == size
    back = await read(blobs, at)
    assert back is not None
    assert sha256(back) == sha256(data)


@pytest.mark.parametrize("size", SIZES)
async def test_an_aborted_object_never_exists(blobs: BlobStore, size: int) -> None:
    at = key()
    writer = await blobs.begin(at, size)
    if size:
        await writer.write([os.urandom(size)])
    await writer.abort()
    assert await blobs.head(at) is None
    assert await read(blobs, at) is None
    assert await orphans(blobs, -60) == []


async def test_nothing_is_visible_before_the_commit(blobs: BlobStore) -> None:
    at = key()
    writer = await blobs.begin(at, 12 * MIB)
    for _ in range(12):
        await writer.write([bytes(MIB)])
    assert await blobs.head(at) is None
    await writer.commit()
    assert await blobs.head(at) == 12 * MIB


async def test_a_second_object_of_one_key_is_refused_and_replaces_nothing(
    blobs: BlobStore,
) -> None:
    at = await stored(blobs, b"first")
    with pytest.raises(UploadError):
        await stored(blobs, b"other", at)
    assert await read(blobs, at) == b"first"


async def test_deleting_is_repeatable(blobs: BlobStore) -> None:
    at = await stored(blobs, b"bytes")
    await blobs.delete(at)
    await blobs.delete(at)
    assert await blobs.head(at) is None
    assert await blobs.open(at) is None


async def test_only_what_is_old_enough_is_listed(blobs: BlobStore) -> None:
    keys = {await stored(blobs, b"x") for _ in range(3)}
    assert set(await orphans(blobs, -60)) == keys
    assert await orphans(blobs, 3_600) == []


async def test_what_others_keep_in_the_bucket_is_no_orphan(s3_settings: dict[str, Any]) -> None:
    prefix = secrets.token_hex(8)
    blobs = S3Blobs(**s3_settings, prefix=prefix)
    theirs = S3Store(s3_settings["bucket"], prefix=prefix, **without_bucket(s3_settings))
    for name in ("2024/report.pdf", "notes", f"{'ab' * 16}/a/b", f"old/{secrets.token_hex(16)}"):
        await obstore.put_async(theirs, name, b"years of work")
    ours = await stored(blobs, b"x")
    assert await orphans(blobs, -60) == [ours]


def without_bucket(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "bucket"}


async def test_many_objects_at_once_keep_apart(blobs: BlobStore) -> None:
    data = {key(): os.urandom(300_000 + turn) for turn in range(12)}

    async with anyio.create_task_group() as group:
        for at, body in data.items():
            group.start_soon(stored, blobs, body, at)
    for at, body in data.items():
        assert await read(blobs, at) == body


async def test_a_reader_that_takes_longer_than_the_bucket_may_gets_the_whole_object(
    s3_settings: dict[str, Any],
) -> None:
    patience_s = 1.0  # for a request; a retry would hide what the first one does
    blobs = S3Blobs(
        **s3_settings,
        prefix=secrets.token_hex(8),
        request_timeout_s=patience_s,
        retry_timeout_s=patience_s,
        max_retries=0,
    )
    data = os.urandom(48 * MIB)  # more than fits in the buffers between the two
    at = await stored(blobs, data)
    reader = await blobs.open(at)
    assert reader is not None
    count = 0
    async for chunk in reader:
        if not count:
            await anyio.sleep(2.5 * patience_s)  # the sandbox, or the one who downloads, is slow
        count += len(chunk)
    await reader.aclose()
    assert count == len(data)
