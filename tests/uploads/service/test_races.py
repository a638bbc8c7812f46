"""Replicas in processes of their own, on one database and one store of bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import (
    ME,
    BlobFaults,
    Database,
    chunked,
    config,
    fresh_database,
    sha256,
)

from agent_sandbox.errors import UploadConflictError
from agent_sandbox.uploads.blobs import BlobStore
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.blobs.s3 import S3Blobs
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.postgres import PostgresStore
from agent_sandbox.uploads.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]


def start(job: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.upload_worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    return process


def said(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return [line for line in map(json.loads, out.splitlines()) if "ready" not in line]


PARTS = ["SQLite and a directory", "PostgreSQL and a directory", "PostgreSQL and a bucket"]


@pytest.fixture(params=PARTS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return where the replicas keep their rows and bytes."""
    if request.param == PARTS[0]:
        store: Any = SqliteStore(tmp_path / "db")
        where = str(tmp_path / "db")
    else:
        where = await fresh_database(request.getfixturevalue("postgres_dsn"), "races")
        store = PostgresStore(where)
    await store.migrate()
    await store.close()
    if request.param == PARTS[2]:
        bucket = request.getfixturevalue("s3_settings")
        return {"store": where, "blobs": {**bucket, "prefix": f"races-{tmp_path.name}"}}
    return {"store": where, "blobs": str(tmp_path / "blobs")}


async def test_of_two_puts_in_two_processes_one_is_200_and_one_is_409(
    place: dict[str, Any],
) -> None:
    races = int(os.environ.get("AGENT_SANDBOX_RACES", "200"))
    bodies = [b"the first body", b"another bodies"]
    job = {**place, "do": "create", "count": races, "body": bodies[0].hex()}
    sessions = [[line["id"], line["secret"]] for line in said(start(job))]
    racers = [
        start({**place, "do": "put", "wait": True, "sessions": sessions, "body": body.hex()})
        for body in bodies
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()  # both have started and opened nothing yet
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    with ThreadPoolExecutor() as readers:  # a racer whose pipe is full would stop racing
        lines = list(readers.map(said, racers))
    statuses = Counter((line["id"], line["status"]) for each in lines for line in each)
    assert [len(each) for each in lines] == [races, races]
    for name, _ in sessions:
        assert (statuses[name, 200], statuses[name, 409]) == (1, 1)
    for each, body in zip(lines, bodies, strict=True):
        assert {line["sha256"] for line in each if line["status"] == 200} <= {sha256(body)}
    where = place["blobs"]
    blobs: BlobStore = LocalBlobs(where) if isinstance(where, str) else S3Blobs(**where)
    assert len([key async for key in blobs.list_orphans(-60)]) == races


async def test_of_two_puts_in_one_process_exactly_one_wins_a_thousand_times(
    database: Database, faults: BlobFaults
) -> None:
    wide = {"pending_per_workspace": 10**6, "hourly_per_workspace": 10**6}
    service = UploadService(config(**wide), database.store, faults)

    async def put(session: UploadSession, secret: str, body: bytes, won: list[bytes]) -> None:
        try:
            admitted = await service.authorise(session.upload_id, session.endpoint, secret)
            await service.receive(await service.claim(admitted), chunked(body))
            won.append(body)
        except UploadConflictError:
            return

    for _ in range(20):
        made = [await service.create(ME, "a", 5) for _ in range(50)]
        winners: list[list[bytes]] = [[] for _ in made]
        async with anyio.create_task_group() as group:
            for (session, secret), won in zip(made, winners, strict=True):
                for body in (b"first", b"other"):
                    group.start_soon(put, session, secret, body, won)
        for (session, _), won in zip(made, winners, strict=True):
            found = await service.get(ME, session.upload_id)
            assert [found.received_sha256] == [sha256(body) for body in won]


async def test_create_put_and_place_go_to_different_replicas_on_postgres_and_s3(
    postgres_dsn: str, s3_settings: dict[str, Any], tmp_path: Path
) -> None:
    where = await fresh_database(postgres_dsn, "replicas")
    store = PostgresStore(where)
    await store.migrate()
    await store.close()
    parts = {"store": where, "blobs": {**s3_settings, "prefix": tmp_path.name}}
    seed = os.urandom(1_000)
    body = seed * 6_000  # more than one part
    given = {"body": seed.hex(), "times": 6_000}
    made = said(start({**parts, "do": "create", "count": 3, **given}))
    sessions = [[line["id"], line["secret"]] for line in made]
    put = said(start({**parts, "do": "put", "sessions": sessions, **given}))
    assert [(line["status"], line["sha256"]) for line in put] == [(200, sha256(body))] * 3
    placed = said(start({**parts, "do": "place", "sessions": sessions, "path": "/a"}))
    again = said(start({**parts, "do": "place", "sessions": sessions, "path": "/b"}))
    assert [(line["path"], line["replayed"]) for line in placed] == [("/a", False)] * 3
    assert [(line["path"], line["replayed"]) for line in again] == [("/a", True)] * 3
