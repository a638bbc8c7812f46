"""The secret of a session, the keys and the passwords: in nothing that is written or shown."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import hashlib
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.raw_http import RawClient, exchange, request
from tests.support.upload_parts import KEY, ME, BlobFaults, Database, Sink, chunked, config, stop
from tests.support.upload_server import running

from agent_sandbox.errors import AgentSandboxError, ConfigError, UploadBusyError
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.blobs.s3 import S3Blobs
from agent_sandbox.uploads.models import PlaceTarget, StoredUpload
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.postgres import PostgresStore
from agent_sandbox.uploads.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
BODY = b"first-canary-bytes" + b"\0" * 300_000 + b"last-canary-bytes"
CONTENT = [b"canary-bytes", base64.b64encode(BODY)[:20], b"canary-bytes".hex().encode()]


def shapes(secret: str) -> list[bytes]:
    """Return the forms in which a secret may be written."""
    raw = secret.encode()
    digest = hashlib.sha256(raw)
    forms = [raw, base64.b64encode(raw)[:-2], raw.hex().encode(), quote(secret).encode()]
    return [*forms, digest.hexdigest().encode(), digest.digest(), raw[:20], raw[-20:]]


def files_below(root: Path) -> Iterator[bytes]:
    for path in root.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def processes() -> Iterator[bytes]:
    """Yield the command line and the environment of every process that lets us look."""
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with suppress(OSError):
                yield (folder / name).read_bytes()


def test_a_server_s_log_metrics_answers_rows_and_process_list_hold_no_secret(
    tmp_path: Path,
) -> None:
    job = {"store": str(tmp_path / "db"), "blobs": str(tmp_path / "blobs"), "log": True}
    store = SqliteStore(tmp_path / "db")
    log = tmp_path / "log"
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-X", "dev", "-m", "tests.support.upload_replica"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONASYNCIODEBUG": "1"},
        )  # fmt: skip
    try:
        asyncio.run(store.migrate())
        asyncio.run(store.close())
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job).encode() + b"\n")
        server.stdin.flush()
        port = int(server.stdout.readline())
        seen: list[bytes] = []

        def ask(data: bytes) -> Any:
            answer = exchange(port, data)
            seen.extend([answer.body, repr(answer.headers).encode()])
            return answer

        def create() -> tuple[str, str]:
            body = json.dumps({"filename": "a.bin", "size_bytes": len(BODY)}).encode()
            data = request("POST", "/create", f"Content-Length: {len(body)}", body=body)
            made = exchange(port, data).json
            return made["path"], made["secret"]

        def put(path: str, *lines: str, body: bytes = BODY) -> bytes:
            return request("PUT", path, *lines, f"Content-Length: {len(body)}", body=body)

        path, secret = create()
        auth = f"Authorization: {secret}"
        secrets = [secret]
        for data in (
            put(f"{path}?token={secret}"),
            put(f"{path}?{secret}", f"Cookie: token={secret}"),
            put(f"{path}/{secret}", auth),
            put("/uploads/" + "0" * 32, auth),
            put(path, f"{auth} "[:-5]),
            put(path, auth, auth),
            put(path, auth, "Content-Encoding: gzip"),
            put(path, auth, "Content-Range: bytes 0-1/2"),
            put(path, auth, body=b"short"),
            put(path, f"Authorization : {secret}"),
            request("POST", path, auth),
            request("GET", f"/downloads/{path.rpartition('/')[2]}", auth),
            request("GET", path, auth),
        ):
            assert ask(data).status in (200, 400, 401, 404, 405, 415)
        with RawClient(port) as client:  # while its body is on its way
            client.send(put(path, auth)[:-1_000])
            seen.extend(processes())
            client.send(BODY[-1_000:])
            assert client.answer().status == 200
        assert ask(put(path, auth)).status == 409
        for broken in (b"x" * len(BODY), BODY[:-7]):
            other, another = create()
            secrets.append(another)
            with RawClient(port) as client:
                client.send(put(other, f"Authorization: {another}")[: -len(BODY)] + broken)
                client.finish_sending()
                seen.append(client.rest())
        metrics = ask(request("GET", "/metrics"))
        assert b"agent_sandbox_upload_changes_total" in metrics.body
        place = json.dumps({"id": path.rpartition("/")[2], "path": "/a"}).encode()
        placed = exchange(
            port, request("POST", "/place", f"Content-Length: {len(place)}", body=place)
        )
        assert placed.status == 200
        seen.extend(processes())
    finally:
        stop(server)
        server.communicate(timeout=20)
    written = log.read_bytes()
    assert path.rpartition("/")[2].encode() in written  # ids are there, so it is the log
    seen.extend([written, *files_below(tmp_path)])
    for one in seen:
        for canary in (form for each in secrets for form in shapes(each)):
            assert canary not in one
    for canary in CONTENT:
        assert canary not in written + metrics.body


def ours() -> Iterator[object]:
    """Yield every living object of the package."""
    for one in gc.get_objects():
        if str(type(one).__module__).startswith("agent_sandbox."):
            yield one


async def test_no_object_of_ours_shows_a_secret_a_proof_or_a_key(
    service: UploadService, database: Database
) -> None:
    looked: set[str] = set()
    session, secret = await service.create(ME, "a.bin", len(BODY))

    def look() -> None:
        hidden = [secret, KEY.decode(), session.secret_hmac.hex(), repr(session.secret_hmac)]
        for one in ours():
            shown = f"{one!r} {one!s}"
            looked.add(type(one).__name__)
            assert not [canary for canary in hidden if canary in shown], type(one)

    async def watched(data: bytes) -> AsyncIterator[bytes]:
        async for chunk in chunked(data):
            look()
            yield chunk

    class Looking(Sink):
        async def place(
            self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
        ) -> Any:
            look()
            return await super().place(upload, data, target)

    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    attempt = await service.claim(admitted)
    await service.receive(attempt, watched(BODY))
    await service.place(ME, session.upload_id, Looking(), "/a")
    look()
    assert {"Core", "UploadService", "UploadsConfig", "UploadSession", "Attempt"} <= looked


def test_no_object_of_the_http_layer_shows_the_header(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        ticket = server.create(9)
        with RawClient(server.port) as client:
            client.send(
                ticket.put(b"", f"Cookie: {ticket.secret}", "Expect: 100-continue", length=9)
            )
            assert client.answer().status == 100  # so that it is being read
            kinds = set()
            for one in ours():
                kinds.add(type(one).__name__)
                assert ticket.secret not in f"{one!r} {one!s}", type(one)
            assert {"Cycle", "Head", "UploadEndpoint"} <= kinds
            client.send(b"nine bytes"[:9])
            assert client.answer().status == 200


# --- Errors and settings --------------------------------------------------------------------


async def errors_of(service: UploadService, secret: str, path: str) -> list[AgentSandboxError]:
    """Return what calls with a secret fail with."""
    caught: list[AgentSandboxError] = []
    name = path.rpartition("/")[2]
    for call in (
        lambda: service.authorise(name, path, secret),
        lambda: service.authorise("0" * 32, path, secret),
        lambda: service.authorise(name, "/elsewhere", secret),
        lambda: service.authorise(secret, secret, secret),
        lambda: service.authorise(name, path, secret + "x"),
        lambda: service.authorise(name, path, secret, kind="download"),
        lambda: service.get(ME, secret),
        lambda: service.place(ME, secret, Sink(), secret),
        lambda: service.create(ME, f"{secret}/x", 1),
        lambda: service.create(ME, secret, -1),
        lambda: service.create(ME, "a", 1, secret),
    ):
        try:
            await call()
        except AgentSandboxError as error:
            caught.append(error)
    return caught


async def test_errors_their_pickles_and_their_tracebacks_hold_no_secret(
    service: UploadService,
) -> None:
    session, secret = await service.create(ME, "a.bin", 5)
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    await service.receive(await service.claim(admitted), chunked(b"hello"))
    caught = await errors_of(service, secret, session.endpoint)
    assert len(caught) == 11
    for error in caught:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, just made
        assert (type(again), vars(again)) == (type(error), vars(error))
        shown = [repr(error), str(error), repr(vars(error)), repr(error.args)]
        shown += traceback.format_exception(error)
        written = "".join(shown).encode() + pickle.dumps(error)
        assert not [form for form in shapes(secret) if form in written]


async def test_a_database_s_password_is_in_no_error_log_or_pickle(
    caplog: pytest.LogCaptureFixture, postgres_dsn: str
) -> None:
    where = postgres_dsn.rpartition("@")[2]
    with caplog.at_level(logging.DEBUG):
        for dsn in (
            f"postgresql://test:canary-word@{where.rpartition('/')[0]}/canary-base",
            f"postgresql://canary-user:canary-word@{where}",
            "postgresql://canary-user:canary-word@127.0.0.1:1/canary-base",
            "postgresql://canary-user:canary-word@[canary:broken/canary-base",
            "postgresql://canary-user:canary-word@127.0.0.1:canary-port/canary-base",
            "mysql://canary-user:canary-word@127.0.0.1/canary-base",
        ):
            store = PostgresStore(dsn, busy_timeout_s=1.0)
            with pytest.raises((UploadBusyError, ConfigError)) as refusal:
                await store.read("0" * 32)
            shown = "".join(traceback.format_exception(refusal.value)) + repr(refusal.value)
            assert "canary-" not in shown
            assert b"canary-" not in pickle.dumps(refusal.value)
            assert "canary-" not in repr(store)
            for way in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=r"^PostgresStore holds secrets"):
                    way(store)
            await store.close()
    assert "canary-" not in caplog.text


def test_settings_and_buckets_are_neither_shown_nor_pickled(tmp_path: Path) -> None:
    bucket = S3Blobs(
        "files", region="us-east-1", access_key_id="canary-id", secret_access_key="canary-key"
    )
    settings = config(server_key=b"canary-" * 9)
    service = UploadService(settings, SqliteStore("db"), BlobFaults(LocalBlobs(tmp_path / "b")))
    assert "canary-" not in repr([bucket, settings, service, vars(service)])
    for holder in (bucket, settings):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"holds secrets and is not pickled$"):
                way(holder)
