"""The state table, cell by cell, against the service: what is answered, and what is left after it.

`test_states` checks that the table says what the specification says; here each cell happens, on
both databases, with real bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, chunked, config, sha256

from agent_sandbox.errors import (
    AgentSandboxError,
    UploadBodyError,
    UploadConflictError,
    UploadExpiredError,
    UploadFailedError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadOutcomeUnknownError,
    UploadPlacingError,
    UploadRevokedError,
)
from agent_sandbox.uploads.models import Attempt, UploadSession
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import Phase, State

DATA = b"ten bytes!"
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LONG_S = 10 * 86_400
"""A body's time in these tests, so that whoever is receiving is in time at every event."""


class Cell:
    """One session in a wanted state, and what may happen to it."""

    def __init__(self, database: Database, faults: BlobFaults) -> None:
        self.database = database
        self.faults = faults
        self.sink = Sink()
        self.service = UploadService(config(body_deadline_s=LONG_S), database.store, faults)
        self.session: UploadSession
        self.secret = ""
        self.attempt: Attempt | None = None

    async def bring_to(self, state: str) -> None:
        """Make the session."""
        self.session, self.secret = await self.service.create(ME, "a", len(DATA))
        name = self.session.upload_id
        match state:
            case "pending":
                pass
            case "receiving":
                self.attempt = await self.service.claim(self.session)
            case "stored" | "placing" | "placed":
                await self.put()
                if state == "placing":
                    await self.database.store.claim_place(
                        name, attempt="p", target='{"path": "/first"}', lease_ms=9 * DAY
                    )
                elif state == "placed":
                    await self.service.place(ME, name, self.sink, "/first")
            case "failed":
                with pytest.raises(UploadBodyError):
                    await self.put(DATA[:-1])
            case "expired":
                await self.database.advance(10 * MINUTE)
                await self.service.sweep()
            case "revoked":
                await self.service.revoke(ME, name)
            case "unknown":
                await self._lose_the_answer()
        assert await self.state() == state

    async def _lose_the_answer(self) -> None:
        store, name = self.database.store, self.session.upload_id
        attempt = await self.service.claim(self.session)
        writer = await self.faults.begin(attempt.session.object_key or "", len(DATA))
        await writer.write([DATA])
        await store.record_received(
            name, attempt=attempt.token, size_bytes=len(DATA), sha256=sha256(DATA)
        )
        await writer.commit()
        await store.finish_put(name, attempt=attempt.token, to=State.UNKNOWN)
        self.faults.away = True

    async def state(self) -> str | None:
        """Return the state in force, None once the row is gone."""
        found = await self.database.store.read(self.session.upload_id)
        return None if found is None else str(found.state)

    async def objects(self) -> int:
        """Return how many objects there are, whatever the faults."""
        return len([key async for key in self.faults.real.list_orphans(-60)])

    # --- Events -------------------------------------------------------------------------------

    async def put(self, data: bytes = DATA) -> None:
        """The one PUT."""
        session = self.session
        admitted = await self.service.authorise(session.upload_id, session.endpoint, self.secret)
        await self.service.receive(await self.service.claim(admitted), chunked(data))

    async def place(self) -> None:
        """Use the file."""
        await self.service.place(ME, self.session.upload_id, self.sink, "/second")

    async def revoke(self) -> None:
        """Take it back."""
        await self.service.revoke(ME, self.session.upload_id)

    async def after(self, milliseconds: int) -> None:
        """Let time pass since the creation, and sweep."""
        found = await self.database.store.read(self.session.upload_id)
        assert found is not None
        await self.database.advance(milliseconds - (found.now_unix_ms - found.created_unix_ms))
        await self.service.sweep()


EVENTS: dict[str, Callable[[Cell], Awaitable[None]]] = {
    "PUT": Cell.put,
    "place": Cell.place,
    "revoke": Cell.revoke,
    "10 minutes": lambda cell: cell.after(10 * MINUTE),
    "1 hour": lambda cell: cell.after(HOUR),
    "24 hours": lambda cell: cell.after(DAY),
}

Outcome = tuple[type[AgentSandboxError] | None, str | None, int]
"""The error that is answered, the state after it (None: no row), the objects that are left."""

OK = None
GONE_ROW: Outcome = (OK, None, 0)


def same(state: str, objects: int, error: type[AgentSandboxError] | None = None) -> Outcome:
    return error, state, objects


CONFLICT, NOT_READY, UNKNOWN = UploadConflictError, UploadNotReadyError, UploadOutcomeUnknownError
TABLE: dict[str, tuple[Outcome, ...]] = {
    #          PUT                               place
    #          revoke                            10 minutes, 1 hour, 24 hours
    "pending": (
        (OK, "stored", 1), same("pending", 0, NOT_READY),
        (OK, "revoked", 0), (OK, "expired", 0), (OK, "expired", 0), GONE_ROW,
    ),
    "receiving": (
        same("receiving", 0, CONFLICT), same("receiving", 0, NOT_READY),
        same("receiving", 0), same("receiving", 0), same("receiving", 0), same("receiving", 0),
    ),
    "stored": (
        same("stored", 1, CONFLICT), (OK, "placed", 0),
        (OK, "revoked", 0), same("stored", 1), (OK, "expired", 0), GONE_ROW,
    ),
    "placing": (
        same("placing", 1, CONFLICT), (OK, "placed", 1),
        same("placing", 1, UploadPlacingError),
        same("placing", 1), same("placing", 1), same("placing", 1),
    ),
    "placed": (
        same("placed", 0, CONFLICT), same("placed", 0),
        same("placed", 0), same("placed", 0), same("placed", 0), GONE_ROW,
    ),
    "failed": (
        same("failed", 0, CONFLICT), same("failed", 0, UploadFailedError),
        same("failed", 0), same("failed", 0), same("failed", 0), GONE_ROW,
    ),
    "expired": (
        same("expired", 0, UploadExpiredError), same("expired", 0, UploadExpiredError),
        same("expired", 0), same("expired", 0), same("expired", 0), GONE_ROW,
    ),
    "revoked": (
        same("revoked", 0, UploadRevokedError), same("revoked", 0, UploadRevokedError),
        same("revoked", 0), same("revoked", 0), same("revoked", 0), GONE_ROW,
    ),
    # While the storage does not answer. What is found once it does: the test below.
    "unknown": (
        same("unknown", 1, CONFLICT), same("unknown", 1, UNKNOWN),
        same("unknown", 1, UNKNOWN),
        same("unknown", 1), same("unknown", 1), same("unknown", 1),
    ),
}  # fmt: skip
CELLS = [
    pytest.param(state, event, outcome, id=f"{state}, {event}")
    for state, row in TABLE.items()
    for event, outcome in zip(EVENTS, row, strict=True)
]


@pytest.fixture
def cell(database: Database, faults: BlobFaults) -> Cell:
    return Cell(database, faults)


async def happens(cell: Cell, event: str) -> type[AgentSandboxError] | None:
    try:
        with anyio.fail_after(20):
            await EVENTS[event](cell)
    except AgentSandboxError as error:
        return type(error)
    return None


@pytest.mark.parametrize(("state", "event", "outcome"), CELLS)
async def test_a_cell_of_the_table_happens_as_specified(
    cell: Cell, state: str, event: str, outcome: Outcome
) -> None:
    await cell.bring_to(state)
    if (state, event) == ("placing", "place"):
        async with anyio.create_task_group() as group:  # it joins the attempt that runs
            group.start_soon(happens, cell, event)
            await anyio.wait_all_tasks_blocked()
            assert await cell.state() == "placing"
            await cell.database.store.settle_place(
                cell.session.upload_id, attempt="p", phase=Phase.DONE, result="{}"
            )
        answered = None
        assert cell.sink.written == {}
    else:
        answered = await happens(cell, event)
    assert (answered, await cell.state(), await cell.objects()) == outcome
    if state == "placed" and event == "place":
        assert cell.sink.written == {"/first": DATA}
    elif event == "place":
        assert cell.sink.written == ({"/second": DATA} if state == "stored" else {})
    if outcome[1] is None:
        with pytest.raises(UploadNotFoundError):
            await cell.service.get(ME, cell.session.upload_id)


@pytest.mark.parametrize("event", ["place", "revoke", "10 minutes", "1 hour", "24 hours"])
async def test_an_unknown_outcome_is_found_out_and_then_answers_as_the_state_found(
    cell: Cell, event: str
) -> None:
    await cell.bring_to("unknown")
    cell.faults.away = False
    assert await happens(cell, event) is None
    found = (await cell.state(), await cell.objects())
    if event in ("1 hour", "24 hours"):  # one sweep settles it, and the next one goes on
        assert found[0] in ("stored", "expired", None)
        await cell.service.sweep()
        found = (await cell.state(), await cell.objects())
    assert (
        found
        == {
            "place": ("placed", 0),
            "revoke": ("revoked", 0),
            "10 minutes": ("stored", 1),
            "1 hour": ("expired", 0),
            "24 hours": (None, 0),
        }[event]
    )


@pytest.mark.parametrize("event", ["10 minutes", "1 hour", "24 hours"])
async def test_a_body_that_began_in_time_is_completed_whatever_passed(
    cell: Cell, event: str
) -> None:
    await cell.bring_to("receiving")
    await happens(cell, event)
    assert cell.attempt is not None
    writing = cell.service.receive(cell.attempt, chunked(DATA))
    if event == "10 minutes":
        assert (await writing).state is State.STORED
    else:  # it is whole, and nobody has used it for an hour
        with pytest.raises(UploadExpiredError):
            await writing
        assert await cell.objects() == 0


async def test_a_revocation_of_what_is_arriving_drops_its_bytes_at_the_commit(cell: Cell) -> None:
    await cell.bring_to("receiving")
    await cell.revoke()
    assert cell.attempt is not None
    with pytest.raises(UploadRevokedError):
        await cell.service.receive(cell.attempt, chunked(DATA))
    assert (await cell.state(), await cell.objects()) == ("revoked", 0)
