"""Real parts for the upload tests: PostgreSQL, pgbouncer, an S3 server, clocks that stand still."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from agent_sandbox.errors import UploadStorageError
from agent_sandbox.uploads.blobs import BlobReader, BlobStore, BlobWriter
from agent_sandbox.uploads.models import PlaceTarget, Principal, StoredUpload, UploadsConfig
from agent_sandbox.uploads.store.sql import SqlStore

START_MS = 1_800_000_000_000
"""Where the database's clock stands when a test begins."""

KEY = b"a server key for tests, 32 bytes or more"
ME = Principal("static:one", "blue")
OTHER = Principal("static:two", "blue")
FOREIGN = Principal("static:one", "green")


def config(**changes: Any) -> UploadsConfig:
    """Return settings with the documented defaults but for the rate limit."""
    settings: dict[str, Any] = {
        "public_url": "https://files.example.com",
        "server_key": KEY,
        "creates_per_minute": 1_000_000,
    }
    return UploadsConfig(**{**settings, **changes})


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    """Return once something accepts; fail if the process ends or time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended while it was starting"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.05)
    raise AssertionError("the server did not start in time")


def listening(
    start: Callable[[int], subprocess.Popen[bytes]], seconds: float = 60.0
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server on a free port; on another where somebody took that one meanwhile."""
    for _ in range(5):
        port = free_port()
        process = start(port)
        try:
            wait_for_port(port, process, seconds)
        except AssertionError:
            if process.poll() is None:
                stop(process)
                raise
        else:
            return process, port
    raise AssertionError("the server ends whenever it starts")


def plain_user() -> dict[str, Any]:
    """Return how `subprocess` starts a server as a plain user: PostgreSQL refuses root."""
    if os.getuid():
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _own(path: Path, who: dict[str, Any]) -> None:
    if who:
        os.chown(path, who["user"], who["group"])


def stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGINT) -> None:
    process.send_signal(how)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def _program(name: str) -> str:
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    places += [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    found = shutil.which(name, path=os.pathsep.join(places))
    assert found, f"{name} is needed for these tests"
    return found


@contextlib.contextmanager
def postgres(*, fsync: bool = False) -> Iterator[str]:
    """Run a PostgreSQL of its own on a loopback port; yield the DSN of an empty database."""
    who = plain_user()
    root = Path(tempfile.mkdtemp(prefix="uploads-pg-"))
    _own(root, who)
    try:
        subprocess.run(
            [_program("initdb"), "-D", root / "data", "-U", "test", "-A", "trust", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd=root, timeout=120, **who,
        )  # fmt: skip
        options = ["listen_addresses=127.0.0.1", f"fsync={'on' if fsync else 'off'}"]
        options += [f"unix_socket_directories={root}", "max_connections=100"]

        def start(port: int) -> subprocess.Popen[bytes]:
            given = [word for option in (*options, f"port={port}") for word in ("-c", option)]
            with (root / "log").open("wb") as log:
                return subprocess.Popen(
                    [_program("postgres"), "-D", root / "data", *given],
                    stdout=log, stderr=log, cwd=root, **who,
                )  # fmt: skip

        process, port = listening(start)
        try:
            ready = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            end = time.monotonic() + 30
            while subprocess.run(ready, timeout=10).returncode:
                assert time.monotonic() < end, "PostgreSQL does not become ready"
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
        finally:
            stop(process)
    finally:
        shutil.rmtree(root)


@contextlib.contextmanager
def pgbouncer(dsn: str) -> Iterator[str]:
    """Run pgbouncer in transaction mode before a server, with two connections to it."""
    who = plain_user()
    target = dsn.split("@127.0.0.1:")[1].split("/")[0]
    root = Path(tempfile.mkdtemp(prefix="uploads-pgb-"))
    _own(root, who)
    (root / "users").write_text('"test" ""\n')

    def start(port: int) -> subprocess.Popen[bytes]:
        (root / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={target} user=test\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {root}/users\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n"
        )
        return subprocess.Popen(
            [_program("pgbouncer"), "-q", root / "ini"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=root, **who,
        )  # fmt: skip

    try:
        process, port = listening(start)
        try:
            yield dsn.replace(f":{target}/", f":{port}/")
        finally:
            stop(process)
    finally:
        shutil.rmtree(root)


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Run SeaweedFS with its S3 door; yield settings for `S3Blobs`."""
    root = Path(tempfile.mkdtemp(prefix="uploads-s3-"))
    weed = Path(sys.executable).with_name("weed")
    others = ("master.port", "volume.port", "filer.port")
    inner = ("master.port.grpc", "volume.port.grpc", "filer.port.grpc", "s3.port.grpc")

    def start(port: int) -> subprocess.Popen[bytes]:
        ports = {"s3.port": port, **{name: free_port() for name in (*others, *inner)}}
        # Its other doors have fixed ports: a second server on the machine could not start.
        ports |= {"s3.port.iceberg": 0, "s3.port.lance": 0}
        return subprocess.Popen(
            [
                str(weed) if weed.exists() else _program("weed"),
                "server", "-s3", f"-dir={root}", "-ip=127.0.0.1", "-master.volumeSizeLimitMB=64",
                "-volume.max=20", *(f"-{name}={number}" for name, number in ports.items()),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=root,
        )  # fmt: skip

    process, port = listening(start)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        make_bucket(f"{endpoint}/uploads")
        yield {
            "bucket": "uploads",
            "endpoint": endpoint,
            "region": "us-east-1",
            "skip_signature": True,
            "client_options": {"allow_http": True},
        }
    finally:
        stop(process, signal.SIGKILL)  # its data is thrown away
        shutil.rmtree(root, ignore_errors=True)


def make_bucket(url: str) -> None:
    """Make a bucket, and wait until it takes an object: volumes come up after the port."""
    end = time.monotonic() + 60
    for request in (
        urllib.request.Request(url, method="PUT"),  # noqa: S310 - loopback
        urllib.request.Request(f"{url}/probe", data=b"x", method="PUT"),  # noqa: S310 - loopback
    ):
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10):  # noqa: S310
                break
            assert time.monotonic() < end, "the S3 server does not take objects"
            time.sleep(0.2)


class Database:
    """A store with a clock that only the test moves, and a way around the store."""

    def __init__(
        self,
        store: SqlStore,
        execute: Callable[[str], Awaitable[list[Mapping[str, Any]]]],
        set_clock: Callable[[int], Awaitable[None]],
        another: Callable[[], SqlStore],
    ) -> None:
        self.store = store
        self.execute = execute
        self.another = another
        self._set_clock = set_clock
        self.now_ms = START_MS

    async def advance(self, milliseconds: int) -> None:
        """Move the database's clock."""
        self.now_ms += milliseconds
        await self._set_clock(self.now_ms)


PG_CLOCK = (
    "CREATE TABLE IF NOT EXISTS test_clock (now_ms BIGINT NOT NULL)",
    """CREATE OR REPLACE FUNCTION uploads_now_ms() RETURNS BIGINT LANGUAGE sql VOLATILE AS
    $$ SELECT now_ms FROM test_clock $$""",
)


async def fresh_database(dsn: str, name: str) -> str:
    """Make an empty database; return its DSN."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return dsn.rsplit("/", 1)[0] + f"/{name}"


async def chunked(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    """Yield data in chunks."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def sha256(data: bytes) -> str:
    """Return the digest that a file is declared with."""
    return hashlib.sha256(data).hexdigest()


class Sink:
    """A placer that keeps what it is given, and counts."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.fails = fails
        self.written: dict[str, bytes] = {}
        self.calls = 0
        self.inspections = 0
        self.inspected: Mapping[str, Any] | None = None

    async def place(
        self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
    ) -> Mapping[str, Any]:
        """Keep the bytes under the path, whole or not at all."""
        self.calls += 1
        body = b"".join([chunk async for chunk in data])
        if self.fails is not None:
            raise self.fails
        self.written[target.path or ""] = body
        return {"path": target.path, "bytes_written": len(body)}

    async def inspect(self, upload: StoredUpload, target: PlaceTarget) -> Mapping[str, Any] | None:
        """Return what the test says."""
        self.inspections += 1
        return self.inspected


class BlobFaults:
    """A blob store that fails as a test says, and else passes on.

    Attributes:
        real: What it passes on to.
        away: Every question about an object fails.
        commit: Raised by the next commits; after the object was published if `late`.
        deletes: Whether deleting works.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = self.real = blobs
        self.away = False
        self.commit: Exception | None = None
        self.late = False
        self.deletes = True

    async def begin(self, key: str, size_bytes: int) -> BlobWriter:
        """Start an object whose commit may fail."""
        return _FaultyWriter(self, await self._blobs.begin(key, size_bytes))

    async def open(self, key: str) -> BlobReader | None:
        """Open, unless the storage is away."""
        self._look()
        return await self._blobs.open(key)

    async def head(self, key: str) -> int | None:
        """Look, unless the storage is away."""
        self._look()
        return await self._blobs.head(key)

    async def delete(self, key: str) -> None:
        """Delete, if that works at the moment."""
        if self.away or not self.deletes:
            raise UploadStorageError
        await self._blobs.delete(key)

    def list_orphans(self, older_than_s: float) -> AsyncIterator[str]:
        """List, unless the storage is away."""
        self._look()
        return self._blobs.list_orphans(older_than_s)

    def _look(self) -> None:
        if self.away:
            raise UploadStorageError


class _FaultyWriter:
    def __init__(self, faults: BlobFaults, writer: BlobWriter) -> None:
        self._faults = faults
        self._writer = writer
        self.write = writer.write
        self.abort = writer.abort

    async def commit(self) -> None:
        if self._faults.commit is None:
            return await self._writer.commit()
        if self._faults.late:
            await self._writer.commit()
        raise self._faults.commit
