"""What watches may hold: descriptors only while somebody watches, and a bounded memory."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from agent_sandbox.errors import SandboxUnavailableError, TransferError, WatchLimitError
from agent_sandbox.express import inotify, spares
from agent_sandbox.express import watch as module
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.filesystem import MAX_WATCHES, Filesystem
from agent_sandbox.express.names import temporary_name
from agent_sandbox.express.service import Service
from agent_sandbox.express.tree import Tree
from agent_sandbox.express.watch import Pending, PolledWatch, Watch, WatchReader
from agent_sandbox.wire.connect import encode_envelope

RPC = "/filesystem.Filesystem/"


@pytest.fixture
async def http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx2.AsyncClient]:
    # Spares hold descriptors and threads of their own, which come when they come.
    monkeypatch.setattr(spares, "SPARES", 0)
    state = Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    service = Service(state, keys=(), hosts=None, engine=Engine(None))
    transport = httpx2.ASGITransport(service.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://express") as client:
        yield client
    await service.close()


async def made(http: httpx2.AsyncClient) -> dict[str, str]:
    body = (await http.post("/v2/sandboxes", json={"templateID": "base"})).json()
    return {"e2b-sandbox-id": body["sandboxID"], "x-access-token": body["envdAccessToken"]}


class SlowOpen:
    """Makes the opening of watches wait, in its thread, for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        real = Watch.open

        def slow(watch: Watch) -> None:
            self.begun.release()
            assert self.go_on.wait(10)
            real(watch)

        monkeypatch.setattr(Watch, "open", slow)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=10)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowOpen:
    return SlowOpen(monkeypatch)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def watch_dir(http: httpx2.AsyncClient, headers: dict[str, str]) -> asyncio.Task[httpx2.Response]:
    lines = headers | {"content-type": "application/connect+json"}
    body = encode_envelope(b'{"path":"/tmp"}')
    return asyncio.get_running_loop().create_task(
        http.post(RPC + "WatchDir", content=body, headers=lines)
    )


async def test_a_caller_that_leaves_while_its_watch_opens_leaves_nothing_open(
    http: httpx2.AsyncClient, slow: SlowOpen
) -> None:
    headers = await made(http)
    await asyncio.to_thread(int)  # the helper's own thread and descriptors exist from here on
    before = open_descriptors()
    call = watch_dir(http, headers)
    await slow.wait()
    call.cancel()
    slow.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert open_descriptors() == before


async def test_a_sandbox_killed_while_a_watch_opens_leaves_nothing_open(
    http: httpx2.AsyncClient, slow: SlowOpen
) -> None:
    before = open_descriptors()
    headers = await made(http)
    call = watch_dir(http, headers)
    await slow.wait()
    kill = asyncio.get_running_loop().create_task(
        http.delete(f"/sandboxes/{headers['e2b-sandbox-id']}")
    )
    await asyncio.sleep(0)
    slow.go_on.set()
    assert (await kill).status_code == 204
    assert b"was not found" in (await call).content
    assert open_descriptors() == before


async def test_a_polled_watch_does_not_outlive_a_sandbox_that_ends_while_it_opens(
    http: httpx2.AsyncClient, slow: SlowOpen
) -> None:
    before = open_descriptors()
    headers = await made(http)
    loop = asyncio.get_running_loop()
    call = loop.create_task(
        http.post(RPC + "CreateWatcher", json={"path": "/tmp"}, headers=headers)
    )
    await slow.wait()
    url = f"/sandboxes/{headers['e2b-sandbox-id']}"
    kill = loop.create_task(http.delete(url))
    async with asyncio.timeout(10):
        while (await http.get(url)).status_code == 200:  # noqa: ASYNC110 - the kill is on its way
            await asyncio.sleep(0)
    slow.go_on.set()
    assert (await call).status_code == 502
    assert (await kill).status_code == 204
    assert open_descriptors() == before


async def test_watches_that_open_together_and_streams_are_counted(
    http: httpx2.AsyncClient, slow: SlowOpen
) -> None:
    headers = await made(http)
    streams = [watch_dir(http, headers) for _ in range(2)]
    for _ in streams:
        await slow.wait()
    calls = [
        asyncio.get_running_loop().create_task(
            http.post(RPC + "CreateWatcher", json={"path": "/tmp"}, headers=headers)
        )
        for _ in range(MAX_WATCHES + 10)
    ]
    slow.go_on.set()
    answers = [(await call).status_code for call in calls]
    assert answers.count(200) == MAX_WATCHES - 2
    assert answers.count(429) == 12
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)


async def test_watches_of_all_sandboxes_are_counted(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Filesystem, "most_watches", 3)
    first, second = await made(http), await made(http)

    async def watch(headers: dict[str, str]) -> httpx2.Response:
        return await http.post(RPC + "CreateWatcher", json={"path": "/tmp"}, headers=headers)

    answers = [await watch(one) for one in (first, first, second, second)]
    assert [one.status_code for one in answers] == [200, 200, 200, 429]
    assert answers[-1].headers["agent-sandbox-error"] == "E5014"
    await http.delete(f"/sandboxes/{first['e2b-sandbox-id']}")
    assert (await watch(second)).status_code == 200


def use_up(instances: bool, watches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the kernel answer as when the user has no inotify instances or watches left."""

    def none_left(code: int) -> Callable[..., int]:
        def call(*_: object) -> int:
            ctypes.set_errno(code)
            return -1

        return call

    real = inotify._libc
    double = SimpleNamespace(
        inotify_init1=none_left(errno.EMFILE) if instances else real.inotify_init1,
        inotify_add_watch=none_left(errno.ENOSPC) if watches else real.inotify_add_watch,
        inotify_rm_watch=real.inotify_rm_watch,
    )
    monkeypatch.setattr(inotify, "_libc", double)


@pytest.mark.parametrize(("instances", "watches"), [(True, False), (False, True)])
async def test_a_kernel_without_room_for_a_watch_is_no_full_disk(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, instances: bool, watches: bool
) -> None:
    headers = await made(http)
    use_up(instances, watches, monkeypatch)
    answer = await http.post(RPC + "CreateWatcher", json={"path": "/tmp"}, headers=headers)
    assert answer.status_code == 429
    assert answer.headers["agent-sandbox-error"] == "E5014"


def test_directories_that_come_when_there_is_no_room_end_the_watch_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    watch = Watch(tree, "/", recursive=True, with_entry=False)
    watch.open()
    (tmp_path / "new").mkdir()
    use_up(False, True, monkeypatch)
    with pytest.raises(WatchLimitError):
        watch.read()
    watch.close()
    tree.close()


class Scripted:
    """A reader whose answers the test gives."""

    def __init__(self, *answers: list[bytes] | Exception) -> None:
        self._answers = list(answers)

    async def ready(self) -> None:
        if not self._answers:
            await asyncio.Event().wait()

    async def read(self) -> list[bytes]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the double has no event to wait for
            await asyncio.sleep(0)


async def test_watches_of_one_sandbox_share_a_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 100)
    pending = Pending()

    def polled(*answers: list[bytes]) -> PolledWatch:
        return PolledWatch(Scripted(*answers), pending)  # type: ignore[arg-type]  # what is used

    first, second = polled([b"x" * 60]), polled([b"y" * 30], [b"y" * 11])
    await until(lambda: second._failure)
    assert second.take() == [b"y" * 30]
    with pytest.raises(TransferError):
        second.take()
    assert first.take() == [b"x" * 60]
    third = polled([b"z" * 100])
    await until(lambda: third._events)
    third.close()
    fourth = polled([b"z" * 100])
    await until(lambda: fourth._events)
    assert fourth.take() == [b"z" * 100]
    fourth.close()


async def test_a_watch_that_fails_for_want_of_descriptors_says_so() -> None:
    reader = Scripted(SandboxUnavailableError())
    watch = PolledWatch(reader, Pending())  # type: ignore[arg-type]  # the part that is used
    await until(lambda: watch._failure)
    with pytest.raises(SandboxUnavailableError):
        watch.take()


def test_one_batch_of_events_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    watch = Watch(tree, "/", recursive=True, with_entry=True)
    watch.open()
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    for n in range(10):
        (directory / f"{n}").touch()
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 1_000)
    with pytest.raises(TransferError):
        watch.read()
    watch.close()
    tree.close()


async def test_a_reader_takes_its_turn_in_the_sandboxs_share(tmp_path: Path) -> None:
    disk = Disk()
    tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    watch = Watch(tree, "/", recursive=False, with_entry=False)
    watch.open()
    slots = asyncio.Semaphore(0)
    read = asyncio.get_running_loop().create_task(WatchReader(watch, disk, slots).read())
    await asyncio.sleep(0)
    assert not read.done()
    slots.release()
    assert await read == []
    watch.close()
    tree.close()
    disk.close()


def test_halves_that_never_come_are_not_kept_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    watch = Watch(tree, "/", recursive=False, with_entry=False)
    watch.open()
    (number,) = watch._directories
    name = temporary_name("n")
    raw = [inotify.RawEvent(number, inotify.IN_MOVED_FROM, n, name) for n in range(1, 10_000)]
    monkeypatch.setattr(inotify, "read_events", lambda fd: raw)
    assert watch.read() == []
    assert len(watch._placing) <= 1_024
    watch.close()
    tree.close()
