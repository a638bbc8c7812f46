"""Opening, authorising, looking at and revoking sessions."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import (
    FOREIGN,
    ME,
    OTHER,
    START_MS,
    BlobFaults,
    Database,
    Sink,
    chunked,
    config,
    sha256,
)

from agent_sandbox.errors import (
    ArgumentError,
    UploadBusyError,
    UploadConflictError,
    UploadExpiredError,
    UploadNameError,
    UploadNotFoundError,
    UploadPlacingError,
    UploadQuotaError,
    UploadRateError,
    UploadRevokedError,
    UploadSecretMissingError,
    UploadSizeError,
)
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store.sqlite import SqliteStore


async def put(service: UploadService, session: UploadSession, secret: str, data: bytes) -> None:
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    await service.receive(await service.claim(admitted), chunked(data))


async def test_a_new_session_shows_its_secret_once_and_no_key(service: UploadService) -> None:
    session, secret = await service.create(ME, "catalogue.xlsx", 15_961)
    assert len(secret) == 43
    assert session.object_key is None
    assert session.endpoint == f"/uploads/{session.upload_id}"
    assert service.config.url("upload", session.upload_id) == (
        f"https://files.example.com/uploads/{session.upload_id}"
    )
    assert secret not in repr(session)
    assert session.secret_hmac.hex() not in repr(session)


async def test_no_secret_is_in_the_database(database: Database, service: UploadService) -> None:
    session, secret = await service.create(ME, "a.csv", 1)
    rows = await database.execute("SELECT * FROM upload_sessions")
    shown = repr([dict(row) for row in rows])
    assert session.upload_id in shown
    assert secret not in shown
    assert secret.encode().hex() not in shown


BAD_ARGUMENTS: list[tuple[Any, Any, Any]] = [
    ("a", -1, None), ("a", 1.5, None), ("a", True, None), ("a", None, None), ("a", "1", None),
    (None, 1, None), (b"a", 1, None), ("a", 1, "00"), ("a", 1, "g" * 64), ("a", 1, 7),
    ("a", 1, "0" * 64 + "\n"),
]  # fmt: skip


@pytest.mark.parametrize(("filename", "size", "digest"), BAD_ARGUMENTS)
async def test_wrong_types_and_ranges_are_refused_before_anything_is_issued(
    service: UploadService, filename: Any, size: Any, digest: Any
) -> None:
    with pytest.raises(ArgumentError):
        await service.create(ME, filename, size, digest)
    assert service.tally().changes == {}


BAD_NAMES = [
    "", " ", ".", "..", "a/b", "../a", "a\\b", "a\0b", "a\nb", "a\x1b[31m", "a\u202etxt.exe",
    "a\u2066b", "a\ud800", "x" * 256, "x" * 10_000, "\u00e9" * 128, "a\u2028b",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_bad_name_is_refused(service: UploadService, name: str) -> None:
    with pytest.raises(UploadNameError):
        await service.create(ME, name, 1)


@pytest.mark.parametrize("size", [2**30 + 1, 2**63, 2**200])
async def test_a_size_over_the_cap_is_refused(service: UploadService, size: int) -> None:
    with pytest.raises(UploadSizeError) as refusal:
        await service.create(ME, "a", size)
    assert refusal.value.limit == 2**30


async def test_only_configured_extensions_are_taken(database: Database, faults: BlobFaults) -> None:
    settings = config(allowed_extensions=frozenset({".csv"}))
    service = UploadService(settings, database.store, faults)
    await service.create(ME, "A.CSV", 1)
    for name in ("a.exe", "csv", "a.csv.exe", ".csv"):
        with pytest.raises(UploadNameError):
            await service.create(ME, name, 1)


async def test_a_burst_over_the_rate_is_refused_and_says_when(
    database: Database, faults: BlobFaults
) -> None:
    service = UploadService(config(creates_per_minute=2), database.store, faults)
    await service.create(ME, "a", 1)
    await service.create(ME, "a", 1)
    with pytest.raises(UploadRateError) as refusal:
        await service.create(ME, "a", 1)
    assert 0 < refusal.value.retry_after_s <= 30
    await service.create(OTHER, "a", 1)


async def test_the_quota_belongs_to_the_workspace(service: UploadService) -> None:
    for turn in range(20):
        await service.create((ME, OTHER)[turn % 2], "a", 1)
    with pytest.raises(UploadQuotaError):
        await service.create(OTHER, "a", 1)
    await service.create(FOREIGN, "a", 1)


WRONG: list[str | None] = ["x", "\u00e9\u00ff", "\udcff", "k" * 65_536, "Bearer abc", "\0"]


async def test_wrong_secrets_look_like_unknown_ids_and_use_nothing_up(
    service: UploadService,
) -> None:
    session, secret = await service.create(ME, "a", 1)
    other, _ = await service.create(ME, "a", 1)
    tries = [(session.upload_id, session.endpoint, wrong) for wrong in WRONG]
    tries += [
        ("f" * 32, f"/uploads/{'f' * 32}", secret),
        (session.upload_id, "/downloads/" + session.upload_id, secret),
        (other.upload_id, other.endpoint, secret),
        (session.upload_id, session.endpoint, secret + " "),
    ]
    for upload_id, endpoint, wrong in tries:
        with pytest.raises(UploadNotFoundError) as refusal:
            await service.authorise(upload_id, endpoint, wrong)
        assert vars(refusal.value) == {}
    for missing in (None, ""):
        with pytest.raises(UploadSecretMissingError):
            await service.authorise(session.upload_id, session.endpoint, missing)
    await put(service, session, secret, b"x")


async def test_an_upload_secret_opens_no_download(service: UploadService) -> None:
    session, secret = await service.create(ME, "a", 1)
    with pytest.raises(UploadNotFoundError):
        await service.authorise(session.upload_id, session.endpoint, secret, kind="download")


async def test_a_used_attempt_is_a_conflict_and_an_ended_one_is_gone(
    database: Database, service: UploadService
) -> None:
    used, secret = await service.create(ME, "a", 1)
    admitted = await service.authorise(used.upload_id, used.endpoint, secret)
    attempt = await service.claim(admitted)
    with pytest.raises(UploadConflictError):
        await service.claim(admitted)
    with pytest.raises(UploadConflictError) as refusal:
        await service.authorise(used.upload_id, used.endpoint, secret)
    assert refusal.value.state == "receiving"
    await service.receive(attempt, chunked(b"x"))
    with pytest.raises(UploadConflictError):
        await service.authorise(used.upload_id, used.endpoint, secret)

    revoked, secret = await service.create(ME, "a", 1)
    await service.revoke(ME, revoked.upload_id)
    with pytest.raises(UploadRevokedError):
        await service.authorise(revoked.upload_id, revoked.endpoint, secret)

    late, secret = await service.create(ME, "a", 1)
    await database.advance(600_000 - 1)
    admitted = await service.authorise(late.upload_id, late.endpoint, secret)
    await database.advance(1)
    with pytest.raises(UploadExpiredError):
        await service.claim(admitted)
    with pytest.raises(UploadExpiredError):
        await service.authorise(late.upload_id, late.endpoint, secret)


async def test_a_foreign_session_looks_unknown_to_every_use_case(service: UploadService) -> None:
    session, secret = await service.create(ME, "a", 1)
    await put(service, session, secret, b"x")
    for stranger in (OTHER, FOREIGN):
        with pytest.raises(UploadNotFoundError):
            await service.get(stranger, session.upload_id)
        with pytest.raises(UploadNotFoundError):
            await service.revoke(stranger, session.upload_id)
        with pytest.raises(UploadNotFoundError):
            await service.place(stranger, session.upload_id, Sink(), "/a")
    strange: list[Any] = ["", "no such id", "\0", "\udcff", "F" * 32, "f" * 10_000, None, 7]
    for name in strange:
        with pytest.raises(UploadNotFoundError):
            await service.get(ME, name)
        with pytest.raises(UploadNotFoundError):
            await service.authorise(str(name), f"/uploads/{name}", secret)


async def test_a_standing_wait_ends_when_the_bytes_land(service: UploadService) -> None:
    session, secret = await service.create(ME, "a", 5)
    assert (await service.get(ME, session.upload_id, 0.05)).state is State.PENDING
    found: list[UploadSession] = []

    async def wait() -> None:
        found.append(await service.get(ME, session.upload_id, 30))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await put(service, session, secret, b"bytes")
    assert (found[0].state, found[0].received_sha256) == (State.STORED, sha256(b"bytes"))


async def test_a_wait_hears_of_another_replica(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    session, _ = await service.create(ME, "a", 5)
    replica = UploadService(config(), database.another(), faults)
    found: list[UploadSession] = []

    async def wait() -> None:
        found.append(await service.get(ME, session.upload_id, 30))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await replica.revoke(ME, session.upload_id)
    assert found[0].state is State.REVOKED


async def test_revoking_drops_the_bytes_and_is_a_no_op_at_an_end(
    service: UploadService, faults: BlobFaults
) -> None:
    session, secret = await service.create(ME, "a", 5)
    await put(service, session, secret, b"bytes")
    assert (await service.revoke(ME, session.upload_id)).state is State.REVOKED
    assert [key async for key in faults.list_orphans(-60)] == []
    assert (await service.revoke(ME, session.upload_id)).state is State.REVOKED
    used, secret = await service.create(ME, "a", 5)
    await put(service, used, secret, b"bytes")
    await service.place(ME, used.upload_id, Sink(), "/a")
    assert (await service.revoke(ME, used.upload_id)).state is State.PLACED


async def test_a_session_that_is_being_placed_cannot_be_revoked(
    database: Database, service: UploadService
) -> None:
    session, secret = await service.create(ME, "a", 5)
    await put(service, session, secret, b"bytes")
    await database.store.claim_place(session.upload_id, attempt="p", target="{}", lease_ms=9_000)
    with pytest.raises(UploadPlacingError):
        await service.revoke(ME, session.upload_id)


async def test_a_removed_connection_loses_its_unused_secrets(service: UploadService) -> None:
    mine, secret = await service.create(ME, "a", 1)
    theirs, _ = await service.create(OTHER, "a", 1)
    assert await service.revoke_principal(ME.credential_id) == 1
    with pytest.raises(UploadRevokedError):
        await service.authorise(mine.upload_id, mine.endpoint, secret)
    assert (await service.get(OTHER, theirs.upload_id)).state is State.PENDING


async def test_the_log_holds_ids_and_states_and_nothing_else(
    service: UploadService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="agent_sandbox")
    session, secret = await service.create(ME, "canary-name.csv", 13)
    await put(service, session, secret, b"canary-bytes!")
    await service.place(ME, session.upload_id, Sink(), "/canary/path")
    assert f"upload {session.upload_id} place -> placed" in caplog.text
    found = await service.get(ME, session.upload_id)
    hidden = [secret, "canary", found.attempt, found.place_attempt, ME.credential_id, "blue"]
    assert not [one for one in hidden if one and one in caplog.text]


async def test_two_replicas_on_one_key_serve_any_request(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    session, secret = await service.create(ME, "a", 5)
    replica = UploadService(config(), database.another(), faults)
    await put(replica, session, secret, b"bytes")
    sink = Sink()
    await service.place(ME, session.upload_id, sink, "/a")
    assert (await replica.place(ME, session.upload_id, sink, "/b")).replayed
    assert sink.written == {"/a": b"bytes"}
    stranger = UploadService(
        dataclasses.replace(config(), server_key=b"another key" * 9), database.store, faults
    )
    with pytest.raises(UploadNotFoundError):
        await stranger.authorise(session.upload_id, session.endpoint, secret)


@pytest.mark.parametrize("hours", [-2, 2])
async def test_a_replica_whose_host_clock_is_wrong_changes_nothing(
    service: UploadService, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3_600)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3_600 * 10**9)
    session, secret = await service.create(ME, "a", 5)
    assert session.put_by_unix_ms == START_MS + 600_000
    await put(service, session, secret, b"bytes")
    assert (await service.place(ME, session.upload_id, Sink(), "/a")).result


async def test_a_health_check_tells_whether_the_database_answers(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    service = UploadService(config(), store, LocalBlobs(tmp_path / "blobs"))
    with pytest.raises(UploadBusyError):
        await service.check()
    await store.migrate()
    await service.check()
    await store.close()
