"""Two replicas in processes of their own, behind nginx that sends requests to them by turns."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.nginx import proxy
from tests.support.raw_http import Answer, exchange, request
from tests.support.upload_parts import fresh_database, pgbouncer, stop

from agent_sandbox.uploads.store.postgres import PostgresStore

ROOT = Path(__file__).parents[3]


@contextmanager
def replica(job: dict[str, Any]) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.upload_replica"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        yield int(process.stdout.readline())
    finally:
        stop(process, signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.fixture(params=["straight", "through pgbouncer"])
async def balanced(
    request: pytest.FixtureRequest,
    postgres_dsn: str,
    s3_settings: dict[str, Any],
    tmp_path: Path,
) -> AsyncIterator[int]:
    """Serve through nginx, over one database and one bucket; yield its port."""
    dsn = await fresh_database(postgres_dsn, "balanced")
    store = PostgresStore(dsn)
    await store.migrate()
    await store.close()
    with ExitStack() as stack:
        where = dsn if request.param == "straight" else stack.enter_context(pgbouncer(dsn))
        job = {"store": where, "blobs": {**s3_settings, "prefix": tmp_path.name}}
        ports = [stack.enter_context(replica(job)) for _ in range(2)]
        yield stack.enter_context(proxy(tmp_path / "nginx", *ports, balanced=True))


async def post(port: int, where: str, **payload: Any) -> Answer:
    body = json.dumps(payload).encode()
    data = request("POST", where, f"Content-Length: {len(body)}", body=body)
    return await anyio.to_thread.run_sync(exchange, port, data)


async def test_create_put_and_place_may_each_go_to_another_process(balanced: int) -> None:
    crossed = set()
    for turn in range(6):
        body = os.urandom(100_000 + turn)
        made = await post(balanced, "/create", filename="a.bin", size_bytes=len(body))
        put = request(
            "PUT",
            made.json["path"],
            f"Authorization: {made.json['secret']}",
            f"Content-Length: {len(body)}",
            body=body,
        )
        stored = await anyio.to_thread.run_sync(exchange, balanced, put)
        assert stored.status == 200
        assert stored.json["sha256"] == hashlib.sha256(body).hexdigest()
        again = await anyio.to_thread.run_sync(exchange, balanced, put)
        assert again.status == 409
        placed = await post(balanced, "/place", id=made.json["id"], path="/a")
        assert placed.json == {"path": "/a", "replayed": False, "wrote": body.hex()}
        replayed = await post(balanced, "/place", id=made.json["id"], path="/b")
        assert replayed.json == {"path": "/a", "replayed": True, "wrote": ""}
        answers = (made, stored, again, placed, replayed)
        crossed.add(tuple(answer.headers["replica"] for answer in answers))
    assert len({process for row in crossed for process in row}) == 2
    # nginx takes turns: what one process began the other one goes on with.
    assert all(row[0] != row[1] != row[2] != row[3] != row[4] for row in crossed)
