"""Any sequence of calls and hours against a model of the state table."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from tests.support.upload_parts import ME, START_MS, BlobFaults, Sink, chunked, config

from agent_sandbox.errors import (
    AgentSandboxError,
    TransferError,
    UploadBodyError,
    UploadConflictError,
    UploadExpiredError,
    UploadFailedError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadOutcomeUnknownError,
    UploadPlacingError,
    UploadQuotaError,
    UploadRevokedError,
    UploadTimeoutError,
)
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.models import Attempt
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import MOVES, State
from agent_sandbox.uploads.store.sqlite import SqliteStore

DATA = b"0123456789"
HOUR = 3_600_000
DAY = 24 * HOUR
ENDED = {
    State.EXPIRED: UploadExpiredError,
    State.REVOKED: UploadRevokedError,
    State.FAILED: UploadFailedError,
}
KEPT = {State.STORED, State.PLACING, State.UNKNOWN}


class Model:
    """What should be true of one session."""

    def __init__(self, secret: str, now_ms: int) -> None:
        self.secret = secret
        self.created_ms = now_ms
        self.state: State | None = State.PENDING  # None once the row is removed
        self.attempt: Attempt | None = None
        self.began_ms = 0
        self.revoking = False
        self.phase = ""
        self.path = ""

    def at(self, now_ms: int) -> State | None:
        age = now_ms - self.created_ms
        if self.state is State.PENDING and age >= HOUR / 6:
            return State.EXPIRED
        if self.state is State.STORED and age >= HOUR:
            return State.EXPIRED
        return self.state


class Sessions(RuleBasedStateMachine):
    """Calls in any order. Sessions are named by their ids."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.root = Path(tempfile.mkdtemp(prefix="uploads-machine-"))
        self.now_ms = START_MS
        self.models: dict[str, Model] = {}

    @initialize()
    def start(self) -> None:
        store = SqliteStore(self.root / "db", clock=lambda: self.now_ms)
        self.faults = BlobFaults(LocalBlobs(self.root / "blobs"))
        self.store = store
        self.service = UploadService(config(pending_per_workspace=3), store, self.faults)
        self.run(store.migrate())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.root)

    def run(self, call: Any) -> Any:
        return self.runner.run(call)

    def outcome(self, call: Any) -> Any:
        """Return a result, or the error's class."""
        try:
            return self.run(call)
        except AgentSandboxError as error:
            return type(error)

    @rule(target=names)
    def create(self) -> Any:
        pending = [
            one
            for one in self.models.values()
            if one.at(self.now_ms) in (State.PENDING, State.RECEIVING)
        ]
        made = self.outcome(self.service.create(ME, "a", len(DATA)))
        if len(pending) >= 3:
            assert made is UploadQuotaError
            return ""
        session, secret = made
        self.models[session.upload_id] = Model(secret, self.now_ms)
        return session.upload_id

    @rule(milliseconds=st.sampled_from([1, 60_000, HOUR // 6, HOUR, DAY]))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(name=names)
    def claim(self, name: str) -> None:
        if not name:
            return
        model = self.models[name]

        async def claim() -> Attempt:
            session = await self.service.authorise(name, f"/uploads/{name}", model.secret)
            return await self.service.claim(session)

        got = self.outcome(claim())
        match model.at(self.now_ms):
            case State.PENDING:
                model.state, model.attempt, model.began_ms = State.RECEIVING, got, self.now_ms
            case None:
                assert got is UploadNotFoundError
            case State.EXPIRED | State.REVOKED as state:
                assert got is ENDED[state]
            case _:
                assert got is UploadConflictError

    @rule(name=names, body=st.sampled_from([DATA, DATA[1:], DATA + b"!"]), lost=st.booleans())
    def receive(self, name: str, body: bytes, lost: bool) -> None:
        model = self.models.get(name)
        if model is None or model.attempt is None:
            return
        attempt, model.attempt = model.attempt, None
        if lost:
            self.faults.commit = UploadOutcomeUnknownError("receiving")
            self.faults.late = self.faults.away = True
        got = self.outcome(self.service.receive(attempt, chunked(body, 3)))
        self.faults.commit, self.faults.late, self.faults.away = None, False, False
        if model.state is not State.RECEIVING:  # recovery was quicker
            assert got in (UploadFailedError, UploadBodyError, UploadNotFoundError)
        elif body != DATA:
            assert got is UploadBodyError
            model.state = State.FAILED
        elif model.revoking:
            assert got is UploadRevokedError
            model.state = State.REVOKED
        elif lost:
            assert got is UploadOutcomeUnknownError
            model.state = State.UNKNOWN
        else:
            model.state = State.STORED

    @rule(name=names)
    def revoke(self, name: str) -> None:
        if not name:
            return
        model = self.models[name]
        got = self.outcome(self.service.revoke(ME, name))
        match model.at(self.now_ms):
            case None:
                assert got is UploadNotFoundError
            case State.PLACING:
                assert got is UploadPlacingError
            case State.RECEIVING:
                model.revoking = True
            case State.PENDING | State.STORED:
                model.state = State.REVOKED
            case State.UNKNOWN:
                late = self.now_ms - model.created_ms >= HOUR
                model.state = State.STORED if late else State.REVOKED
            case state:
                assert got.state is state

    @rule(name=names, path=st.sampled_from(["/a", "/b"]), how=st.sampled_from(["", "no", "lost"]))
    def place(self, name: str, path: str, how: str) -> None:
        if not name:
            return
        model = self.models[name]
        sink = Sink({"no": TransferError(), "lost": UploadTimeoutError()}.get(how))
        state = model.at(self.now_ms)
        if state is State.UNKNOWN:
            late = self.now_ms - model.created_ms >= HOUR
            model.state = State.STORED
            state = State.EXPIRED if late else State.STORED
        got = self.outcome(self.service.place(ME, name, sink, path))
        match state:
            case None:
                assert got is UploadNotFoundError
            case State.PENDING | State.RECEIVING:
                assert got is UploadNotReadyError
            case State.STORED | State.PLACING:
                assert sink.calls == 1
                assert sink.inspections == (model.phase == "lost")
                model.state, model.phase = State.PLACING, how
                if not how:
                    model.state, model.path = State.PLACED, path
                    assert (got.target.path, got.replayed) == (path, False)
            case State.PLACED:
                assert (got.target.path, got.replayed, sink.calls) == (model.path, True, 0)
            case state:
                assert got is ENDED[state]

    @rule()
    def sweep(self) -> None:
        self.run(self.service.sweep())
        for model in self.models.values():
            age = self.now_ms - model.created_ms
            expired = model.at(self.now_ms) is State.EXPIRED
            between = model.state is State.PLACING and model.phase == "no" and age >= DAY
            if expired or between:
                model.state = State.EXPIRED
            if model.state is State.RECEIVING and self.now_ms - model.began_ms >= 120_000:
                model.state = State.FAILED
            if model.state is State.UNKNOWN:
                model.state = State.STORED  # the storage answers again
            if model.state in MOVES and not MOVES[model.state] and age >= DAY:
                model.state = None

    @invariant()
    def every_session_is_as_the_model_says(self) -> None:
        bytes_kept = 0
        for name, model in self.models.items():
            found = self.run(self.store.read(name))
            assert (found.state if found else None) is model.at(self.now_ms)
            bytes_kept += model.state in KEPT
        if self.models:
            files = [path for path in (self.root / "blobs").rglob("*") if path.is_file()]
            assert len(files) == bytes_kept


Sessions.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_any_sequence_of_calls_follows_the_table = Sessions.TestCase
