"""Replicas in processes of their own, on one database and one store of bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.upload_parts import fresh_database, sha256

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


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return where the replicas keep their rows and bytes."""
    if request.param == "sqlite":
        store: Any = SqliteStore(tmp_path / "db")
        where = str(tmp_path / "db")
    else:
        where = await fresh_database(request.getfixturevalue("postgres_dsn"), "races")
        store = PostgresStore(where)
    await store.migrate()
    await store.close()
    return {"store": where, "blobs": str(tmp_path / "blobs")}


async def test_of_two_puts_in_two_processes_one_is_200_and_one_is_409(
    place: dict[str, Any], tmp_path: Path
) -> None:
    races = int(os.environ.get("AGENT_SANDBOX_RACES", "200"))
    one, two = b"the first body", b"another bodies"
    made = said(start({**place, "do": "create", "count": races, "body": one.hex()}))
    sessions = [[line["id"], line["secret"]] for line in made]
    jobs = [
        {**place, "do": "put", "wait": True, "sessions": sessions, "body": body.hex()}
        for body in (one, two)
    ]
    racers = [start(job) for job in jobs]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()  # both have started and opened nothing yet
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    lines = [line for racer in racers for line in said(racer)]
    statuses = Counter((line["id"], line["status"]) for line in lines)
    assert len(lines) == 2 * races
    for name, _ in sessions:
        assert (statuses[name, 200], statuses[name, 409]) == (1, 1)
    assert len([path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]) == races


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
