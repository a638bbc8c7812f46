"""Upload sessions: rate, memory and load of the PUT endpoint, and the time of a creation.

Every server is a process of its own on loopback, and files are synced to the disk. Rows in
milliseconds or seconds are bounds that the service promises; they say little on a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

from benches._harness import Row, interleaved
from tests.support.nginx import dav_server
from tests.support.raw_http import exchange, request
from tests.support.upload_parts import ME, config, fresh_database, postgres

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store import UploadStore
from agent_sandbox.uploads.store.postgres import PostgresStore
from agent_sandbox.uploads.store.sqlite import SqliteStore

MIB = 1 << 20
WIDE: dict[str, Any] = {
    "pending_per_workspace": 10**6,
    "hourly_per_workspace": 10**6,
    "creates_per_minute": 10**6,
}
"""Quotas out of the way; they are counted all the same."""

ROOT = Path(__file__).parents[1]
WAIT_S = 120.0
DRIP_DEADLINE_S = 12


def rows() -> Iterator[Row]:
    """Measure every row of the table."""
    yield from _rates()
    yield from _memory()
    yield from _many_clients()
    yield from _slow_clients()
    yield from _creations()


# --- servers --------------------------------------------------------------------------------


class Server:
    """An upload server in a process of its own, and sessions made behind its back."""

    def __init__(self, *, hashed: bool = True, **settings: Any) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="bench-uploads-"))
        self._job: dict[str, Any] = {
            "store": str(self._root / "db"),
            "blobs": str(self._root / "blobs"),
            "hashed": hashed,
            "settings": {**WIDE, **settings},
        }

    def __enter__(self) -> Self:
        self._process = _start("tests.support.upload_replica", json.dumps(self._job))
        self.port = _port_of(self._process)
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)
        shutil.rmtree(self._root)

    def sessions(self, count: int, size: int) -> list[tuple[UploadSession, str]]:
        """Open sessions, through the same database."""

        async def create() -> list[tuple[UploadSession, str]]:
            store = SqliteStore(self._job["store"])
            blobs = LocalBlobs(self._job["blobs"])
            await store.migrate()
            service = UploadService(config(**WIDE), store, blobs)
            try:
                return [await service.create(ME, "a", size) for _ in range(count)]
            finally:
                await store.close()

        return asyncio.run(create())

    def heads(self, count: int, size: int) -> Iterator[bytes]:
        """Yield the heads of that many PUTs in good order, each of a session of its own."""
        for session, secret in self.sessions(count, size):
            yield request(
                "PUT",
                session.endpoint,
                f"Authorization: {secret}",
                f"Content-Length: {size}",
            )

    def memory_mib(self, field: str) -> float:
        """Return a memory figure of the process: `VmRSS` now, `VmHWM` since `reset_peak`."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text("ascii").splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1_024
        raise LookupError(field)

    def reset_peak(self) -> None:
        """Start a new peak."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")


def _start(program: str, job: str = "") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    process.stdin.write(job.encode() + b"\n")
    process.stdin.flush()
    return process


def _port_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.communicate(timeout=WAIT_S)


# --- rates ----------------------------------------------------------------------------------


def _rates() -> Iterator[Row]:
    body = os.urandom(64 * MIB)
    yield Row("PUT of 64 MiB with sha256: time", _to_a_loop(body, ""), 1 / 0.9, "x hashlib loop")
    with tempfile.TemporaryDirectory(prefix="bench-loop-") as folder:
        ratio = _to_a_loop(body, folder)
    yield Row("the same: time", ratio, 1 / 0.9, "x hashlib loop that keeps")

    with (
        tempfile.TemporaryDirectory(prefix="bench-dav-") as folder,
        dav_server(Path(folder)) as dav,
    ):
        head = request("PUT", "/files", f"Content-Length: {len(body)}")
        with Server(hashed=False) as ours:
            ratio = interleaved(_puts(ours, body), lambda: _send(dav, head, body), rounds=20)
    yield Row("PUT of 64 MiB without the hash: time", ratio, 1 / 0.5, "x nginx dav PUT")


def _to_a_loop(body: bytes, folder: str) -> float:
    """Return our time divided by that of a plain loop, which keeps the file in `folder` if any."""
    peer = _start("benches._hash_server", folder)
    try:
        port = _port_of(peer)
        with Server() as ours:
            return interleaved(_puts(ours, body), lambda: _hashed_elsewhere(port, body), rounds=20)
    finally:
        _end(peer)


def _puts(server: Server, body: bytes) -> Callable[[], None]:
    heads = server.heads(23, len(body))  # 20 rounds and a warm-up of 3
    ready = list(heads)
    return lambda: _send(server.port, ready.pop(), body)


def _send(port: int, head: bytes, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(head)
        connection.sendall(body)
        answer = connection.recv(4_096)
        assert answer.startswith(b"HTTP/1.1 20"), answer


def _hashed_elsewhere(port: int, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(len(body).to_bytes(8, "big"))
        connection.sendall(body)
        assert len(connection.recv(64, socket.MSG_WAITALL)) == 64


# --- many at once ---------------------------------------------------------------------------


def _memory() -> Iterator[Row]:
    body = os.urandom(64 * MIB)
    with Server() as ours:
        heads = list(ours.heads(32, len(body)))
        ours.reset_peak()
        errors: list[BaseException] = []

        def put(head: bytes) -> None:
            try:
                _send(ours.port, head, body)
            except BaseException as error:  # noqa: BLE001  # raised in the main thread
                errors.append(error)

        threads = [threading.Thread(target=put, args=(head,)) for head in heads]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert not errors, errors
        yield Row("32 x 64 MiB at once: server's memory", ours.memory_mib("VmHWM"), 150, "MiB")


def _many_clients() -> Iterator[Row]:
    body = os.urandom(MIB)
    with Server() as ours:
        heads = list(ours.heads(200, len(body)))
        ours.reset_peak()
        began = time.perf_counter()
        times = asyncio.run(_all_at_once(ours.port, heads, body))
        whole = time.perf_counter() - began
        peak = ours.memory_mib("VmHWM")
    yield Row("200 clients x 1 MiB at once: all of them", whole, 200 / 40, "s (40 each second)")
    yield Row("200 clients x 1 MiB at once: p99", _p99(times), 5, "s")
    yield Row("200 clients x 1 MiB at once: server's memory", peak, 250, "MiB")


async def _all_at_once(port: int, heads: list[bytes], body: bytes) -> list[float]:
    async def put(head: bytes) -> float:
        began = time.perf_counter()
        async with _connection(port) as (reader, writer):
            writer.write(head)
            writer.write(body)
            status = await reader.readline()
            assert status.startswith(b"HTTP/1.1 200"), status
        return time.perf_counter() - began

    return await asyncio.gather(*(put(head) for head in heads))


@contextlib.asynccontextmanager
async def _connection(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


# --- slow clients ---------------------------------------------------------------------------


def _slow_clients() -> Iterator[Row]:
    with Server(body_deadline_s=DRIP_DEADLINE_S) as ours:
        heads = list(ours.heads(1_000, 1_000))
        late, pings = asyncio.run(_drips(ours.port, heads))
    yield Row("1,000 slow clients: furthest from the deadline", late, 1, "s")
    yield Row("1,000 slow clients: p99 of a ping meanwhile", _p99(pings) * 1_000, 250, "ms")


async def _drips(port: int, heads: list[bytes]) -> tuple[float, list[float]]:
    async def drip(head: bytes) -> float:
        async with _connection(port) as (reader, writer):
            began = time.perf_counter()
            writer.write(head)
            answer = asyncio.ensure_future(reader.readline())
            while not answer.done():
                writer.write(b"x")
                await asyncio.wait([answer], timeout=2.0)
            assert answer.result().startswith(b"HTTP/1.1 408"), answer.result()
            return abs(time.perf_counter() - began - DRIP_DEADLINE_S)

    dripping = [asyncio.create_task(drip(head)) for head in heads]
    pings = []
    while not all(task.done() for task in dripping):
        began = time.perf_counter()
        answer = await asyncio.to_thread(exchange, port, request("GET", "/llms.txt"))
        assert answer.status == 200
        pings.append(time.perf_counter() - began)
        await asyncio.sleep(0.02)
    return max(await asyncio.gather(*dripping)), pings


# --- creation -------------------------------------------------------------------------------


def _creations() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-creates-") as folder:
        root = Path(folder)
        times = asyncio.run(_creates(SqliteStore(root / "db"), root))
        yield Row("create_upload_url, SQLite, 32 at once: p99", _p99(times) * 1_000, 20, "ms")
        with postgres(fsync=True) as dsn:
            own = asyncio.run(fresh_database(dsn, "bench"))
            times = asyncio.run(_creates(PostgresStore(own), root))
        yield Row("create_upload_url, PostgreSQL, 32 at once: p99", _p99(times) * 1_000, 30, "ms")


async def _creates(store: UploadStore, root: Path) -> list[float]:
    """Return the times of 1,600 creations in one workspace, 32 at a time."""
    await store.migrate()
    service = UploadService(config(**WIDE), store, LocalBlobs(root / "blobs"))

    async def client(count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await service.create(ME, "catalogue.xlsx", 15_961)
            times.append(time.perf_counter() - began)
        return times

    try:
        await asyncio.gather(*(client(3) for _ in range(32)))  # connections are opened
        every = await asyncio.gather(*(client(50) for _ in range(32)))
        return [one for times in every for one in times]
    finally:
        await store.close()


def _p99(times: list[float]) -> float:
    return sorted(times)[round(0.99 * (len(times) - 1))]
