"""A replica of the upload service in a process of its own, for races and crashes.

`python -m tests.support.upload_worker` reads its job as one JSON line (`store`, `blobs`, `do`, ...)
and prints one JSON line for each thing it did.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tests.support.upload_parts import ME, Sink, chunked, config

from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.uploads.blobs import BlobStore
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.blobs.s3 import S3Blobs
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store import UploadStore
from agent_sandbox.uploads.store.postgres import PostgresStore
from agent_sandbox.uploads.store.sqlite import SqliteStore


def say(**fields: Any) -> None:
    """Print one line; whole, and at once, since the next step may be the last."""
    os.write(1, (json.dumps(fields) + "\n").encode())


def parts(job: dict[str, Any]) -> tuple[UploadStore, BlobStore]:
    """Return the store and the blobs that a job names."""
    where = job["store"]
    store: UploadStore = (
        PostgresStore(where) if where.startswith("postgresql:") else SqliteStore(where)
    )
    blobs = job["blobs"]
    return store, LocalBlobs(blobs) if isinstance(blobs, str) else S3Blobs(**blobs)


async def put(service: UploadService, session: list[str], body: bytes) -> None:
    """Send a body as the PUT endpoint does; say how it ended."""
    upload_id, secret = session
    try:
        admitted = await service.authorise(upload_id, f"/uploads/{upload_id}", secret)
        attempt = await service.claim(admitted)
        stored = await service.receive(attempt, chunked(body))
        say(id=upload_id, status=200, sha256=stored.sha256)
    except AgentSandboxError as error:
        say(id=upload_id, status=error.http_status, code=error.code)


async def main(job: dict[str, Any]) -> None:
    """Do what the job says."""
    store, blobs = parts(job)
    limits = {"pending_per_workspace": 10**6, "hourly_per_workspace": 10**6}
    service = UploadService(config(**limits, **job.get("settings", {})), store, blobs)
    body = bytes.fromhex(job.get("body", "")) * job.get("times", 1)
    say(ready=True)
    match job["do"]:
        case "create":
            for _ in range(job["count"]):
                session, secret = await service.create(ME, "a", len(body))
                say(id=session.upload_id, secret=secret)
        case "put":
            loop = asyncio.get_running_loop()
            if job.get("wait"):  # for all racers at once
                await loop.run_in_executor(None, sys.stdin.readline)
            for start in range(0, len(job["sessions"]), 8):
                await asyncio.gather(
                    *(put(service, one, body) for one in job["sessions"][start : start + 8])
                )
        case "place":
            for upload_id, _ in job["sessions"]:
                placed = await service.place(ME, upload_id, Sink(), job["path"])
                say(id=upload_id, path=placed.target.path, replayed=placed.replayed)
        case "sweep":
            say(**await service.sweep())
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
