"""What only PostgreSQL can do to us: poolers, retries, lost connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import anyio
import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.support.upload_parts import fresh_database, pgbouncer
from tests.support.upload_rows import new

from agent_sandbox.errors import (
    UploadBusyError,
    UploadError,
    UploadOutcomeUnknownError,
    UploadQuotaError,
)
from agent_sandbox.uploads.states import Phase, State
from agent_sandbox.uploads.store.postgres import PostgresStore, numbered
from agent_sandbox.uploads.store.sql import Row


@pytest.fixture
async def dsn(postgres_dsn: str) -> str:
    own = await fresh_database(postgres_dsn, "faults")
    store = PostgresStore(own)
    await store.migrate()
    await store.close()
    return own


async def run(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


def test_a_parameter_is_numbered_once_and_cast() -> None:
    text, names = numbered("SELECT :size_bytes, :a, :size_bytes, x::text, :body_ms")
    assert text == (
        "SELECT CAST($1 AS BIGINT), CAST($2 AS TEXT), CAST($1 AS BIGINT), x::text,"
        " CAST($3 AS BIGINT)"
    )
    assert names == ("size_bytes", "a", "body_ms")


async def test_pgbouncer_in_transaction_mode_changes_nothing(dsn: str) -> None:
    with pgbouncer(dsn) as pooled:
        stores = [PostgresStore(pooled), PostgresStore(pooled)]
        await stores[0].migrate()
        for _ in range(19):
            await stores[0].create(new())
        refused: list[str] = []

        async def create(turn: int) -> None:
            try:
                await stores[turn % 2].create(new())
            except UploadQuotaError as error:
                refused.append(error.quota)

        async with anyio.create_task_group() as group:
            for turn in range(40):
                group.start_soon(create, turn)
        assert refused == ["pending"] * 39

        async def life(turn: int) -> None:
            name, one, two = f"life{turn}", stores[turn % 2], stores[1 - turn % 2]
            await one.create(new(upload_id=name, workspace="green"))
            assert await two.claim_put(name, attempt="a", object_key=name, body_ms=60_000)
            assert await one.record_received(name, attempt="a", size_bytes=5, sha256="0" * 64)
            assert await two.finish_put(name, attempt="a", to=State.STORED)
            assert await one.claim_place(name, attempt="p", target="{}", lease_ms=60_000)
            done = await two.settle_place(name, attempt="p", phase=Phase.DONE, result="{}")
            assert done is not None
            assert done.state is State.PLACED

        async with anyio.create_task_group() as group:
            for turn in range(20):
                group.start_soon(life, turn)
        for store in stores:
            await store.close()


TROUBLE = """CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
 IF nextval('troubles') <= {times} THEN
  RAISE EXCEPTION 'a secret in an error' USING ERRCODE = '{code}'; END IF;
 RETURN NEW; END $$"""


async def make_trouble(dsn: str, code: str, times: int) -> None:
    await run(
        dsn,
        "CREATE SEQUENCE troubles",
        TROUBLE.format(code=code, times=times),
        "CREATE TRIGGER trouble BEFORE INSERT ON upload_sessions FOR EACH ROW"
        " EXECUTE FUNCTION trouble()",
    )


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_transaction_that_the_server_undid_is_run_again(dsn: str, code: str) -> None:
    await make_trouble(dsn, code, times=2)
    store = PostgresStore(dsn)
    assert (await store.create(new(upload_id="a"))).state is State.PENDING
    await store.close()


async def test_trouble_that_does_not_end_is_busy_after_a_bounded_number_of_tries(
    dsn: str,
) -> None:
    await make_trouble(dsn, "40001", times=1_000)
    store = PostgresStore(dsn)
    with pytest.raises(UploadBusyError):
        await store.create(new(upload_id="a"))
    assert await store.read("a") is None
    await store.close()


async def test_connections_that_a_failover_left_at_the_old_primary_are_replaced(dsn: str) -> None:
    name = dsn.rsplit("/", 1)[1]
    store = PostgresStore(dsn)
    await run(dsn, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await asyncio.gather(*(store.read("a") for _ in range(5)))  # each at a server that is demoted
    with pytest.raises(UploadBusyError):
        await store.create(new(upload_id="a"))
    await asyncio.gather(*(store.read("a") for _ in range(5)))
    await run(
        dsn, "SET default_transaction_read_only = off", f"ALTER DATABASE {name} RESET ALL"
    )  # whoever connects now meets a primary
    assert (await store.create(new(upload_id="a"))).state is State.PENDING
    await store.close()


async def test_an_error_of_the_server_shows_nothing_of_its_text(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make_trouble(dsn, "22000", times=1_000)
    store = PostgresStore(dsn)
    with pytest.raises(UploadBusyError) as refusal:
        await store.create(new(upload_id="a"))
    assert refusal.value.__suppress_context__
    assert "secret" not in caplog.text
    assert dsn not in repr(store)
    await store.close()


async def test_an_exhausted_pool_is_busy_within_the_bound(dsn: str) -> None:
    store = PostgresStore(dsn, pool_size=1, busy_timeout_s=0.5)
    await store.read("a")
    pool = await store._opened()
    async with pool.acquire():
        began = time.monotonic()
        with pytest.raises(UploadBusyError):
            await store.create(new(upload_id="a"))
        assert time.monotonic() - began < 3
    assert (await store.create(new(upload_id="a"))).state is State.PENDING
    await store.close()


async def test_a_server_that_is_not_there_is_busy() -> None:
    store = PostgresStore("postgresql://test:word@127.0.0.1:1/x", busy_timeout_s=0.5)
    with pytest.raises(UploadBusyError):
        await store.read("a")
    await store.close()


@contextlib.asynccontextmanager
async def cut_at_commit(dsn: str, *, applied: bool) -> AsyncIterator[str]:
    """Stand before a server; cut the connection at COMMIT, before or after it takes effect."""
    port = int(dsn.split("@127.0.0.1:")[1].split("/")[0])
    armed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_server = await asyncio.open_connection("127.0.0.1", port)
        cutting = asyncio.Event()

        async def down() -> None:
            while data := await upstream.read(65_536):
                if cutting.is_set():
                    break  # the server has answered the commit, and nobody hears it
                writer.write(data)
            writer.close()

        async def up() -> None:
            while data := await reader.read(65_536):
                if b"COMMIT" in data and not armed.is_set():
                    armed.set()
                    cutting.set()
                    if not applied:
                        break
                to_server.write(data)
            to_server.close()
            writer.close()

        await asyncio.gather(down(), up())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield dsn.replace(f":{port}/", f":{server.sockets[0].getsockname()[1]}/")


@pytest.mark.parametrize("applied", [False, True])
async def test_a_connection_lost_in_commit_is_unknown_and_settled_by_reading(
    dsn: str, applied: bool
) -> None:
    async with cut_at_commit(dsn, applied=applied) as broken:
        store = PostgresStore(broken, busy_timeout_s=3)
        with pytest.raises(UploadOutcomeUnknownError):
            await store.create(new(upload_id="a"))
        found = await store.read("a")
        assert (found is not None) is applied
        await store.close()


async def test_a_look_whose_end_was_not_answered_is_busy_and_no_unknown_outcome(dsn: str) -> None:
    async with cut_at_commit(dsn, applied=True) as broken:
        store = PostgresStore(broken, busy_timeout_s=3)
        with pytest.raises(UploadBusyError):  # nothing can have changed: the PUT may come again
            await store.read("a")
        await store.close()


async def test_a_replica_that_stops_within_a_change_holds_nobody_up_for_long(dsn: str) -> None:
    frozen = PostgresStore(dsn, busy_timeout_s=0.5)
    holds, go_on = asyncio.Event(), asyncio.Event()

    async def stands_still(_connection: object) -> list[Row]:
        holds.set()
        await go_on.wait()
        return []

    change = asyncio.ensure_future(frozen._transaction(stands_still, "uploads:blue"))
    await holds.wait()
    other = PostgresStore(dsn, busy_timeout_s=30)
    async with asyncio.timeout(25):
        assert (await other.create(new(upload_id="a"))).state is State.PENDING
    go_on.set()
    with pytest.raises(UploadError):
        await change
    await frozen.close()
    await other.close()


async def test_a_connection_killed_between_calls_is_replaced(dsn: str) -> None:
    store = PostgresStore(dsn, pool_size=1)
    await store.create(new(upload_id="a"))
    await run(
        dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    for _ in range(3):  # the first may meet the dead connection, and says so
        with contextlib.suppress(UploadError):
            assert await store.read("a") is not None
            break
    else:
        pytest.fail("the pool kept a dead connection")
    await store.close()
