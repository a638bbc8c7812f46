"""Rows of upload sessions in a wanted state, for the tests of the stores."""

from __future__ import annotations

import secrets
from typing import Any

from tests.support.upload_parts import Database

from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store import NewSession

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def new(**changes: Any) -> NewSession:
    values: dict[str, Any] = {
        "upload_id": secrets.token_hex(16),
        "kind": "upload",
        "workspace": "blue",
        "credential_id": "static:one",
        "endpoint": "/uploads/x",
        "filename": "a.csv",
        "size_bytes": 5,
        "sha256": None,
        "secret_hmac": b"\x00\xff" * 16,
        "put_life_ms": 10 * MINUTE,
        "use_life_ms": HOUR,
        "pending_max": 20,
        "hourly_max": 120,
    }
    return NewSession(**{**values, **changes})


async def claimed(database: Database, **changes: Any) -> UploadSession:
    session = await database.store.create(new(**changes))
    moved = await database.store.claim_put(
        session.upload_id, attempt="a1", object_key=f"k/{session.upload_id}", body_ms=MINUTE
    )
    assert moved is not None
    return moved


async def stored(database: Database, **changes: Any) -> UploadSession:
    session = await claimed(database, **changes)
    store = database.store
    await store.record_received(session.upload_id, attempt="a1", size_bytes=5, sha256="0" * 64)
    moved = await store.finish_put(session.upload_id, attempt="a1", to=State.STORED)
    assert moved is not None
    return moved


async def state_of(database: Database, session: UploadSession) -> State:
    found = await database.store.read(session.upload_id)
    assert found is not None
    return found.state
