"""WatchDir and the polled watchers: what is told, what ends them, and what they never follow."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.express import Box, Service, hand_over, wait_until

from agent_sandbox.errors import TransferError
from agent_sandbox.express import inotify
from agent_sandbox.express.filesystem import MAX_WATCHES
from agent_sandbox.express.names import temporary_name
from agent_sandbox.express.tree import Tree
from agent_sandbox.express.watch import Pending, PolledWatch, Watch
from agent_sandbox.wire.connect import EnvelopeDecoder, encode_envelope

Event = tuple[str, str]


class Stream:
    """The messages of one WatchDir call."""

    def __init__(self, chunks: Iterator[bytes], headers: Any) -> None:
        self._chunks = chunks
        self._decoder = EnvelopeDecoder()
        self._waiting: list[dict[str, Any]] = []
        self.headers = headers

    def next(self) -> dict[str, Any]:
        """Return the next message; the last one has the key `end`."""
        while not self._waiting:
            for envelope in self._decoder.feed(next(self._chunks)):
                message = json.loads(envelope.data)
                self._waiting.append({"end": message} if envelope.end else message)
        return self._waiting.pop(0)

    def events(self, count: int) -> list[Event]:
        found: list[Event] = []
        while len(found) < count:
            event = self.next()["filesystem"]
            found.append((event["type"].removeprefix("EVENT_TYPE_"), event["name"]))
        return found


@contextmanager
def watched(box: Box, *, headers: dict[str, str] | None = None, **message: Any) -> Iterator[Stream]:
    lines = box.headers | {"content-type": "application/connect+json"} | (headers or {})
    body = encode_envelope(json.dumps(message).encode())
    url = "/filesystem.Filesystem/WatchDir"
    with box.http.stream("POST", url, content=body, headers=lines) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/connect+json"
        yield Stream(answer.iter_raw(), answer.headers)


@pytest.fixture
def stream(box: Box) -> Iterator[Stream]:
    box.rpc("MakeDir", path="/w/old")
    with watched(box, path="/w") as stream:
        assert stream.next() == {"start": {}}
        yield stream


class TestEvents:
    def test_a_write_is_told_once_by_its_real_name(self, box: Box, stream: Stream) -> None:
        box.put("/w/f", b"1")
        box.put("/w/f", b"2" * 3_000_000)
        box.put("/w/old/deep", b"not told")
        box.rpc("MakeDir", path="/w/end")
        assert stream.events(4) == [
            ("CREATE", "f"), ("WRITE", "f"), ("WRITE", "f"), ("CREATE", "end"),
        ]  # fmt: skip

    def test_a_write_in_place_is_told(self, root: Path, stream: Stream) -> None:
        (root / "w/f").write_bytes(b"1")
        (root / "w/f").chmod(0o600)
        assert stream.events(3) == [("CREATE", "f"), ("WRITE", "f"), ("CHMOD", "f")]

    def test_moving_and_removing_are_told(self, box: Box, stream: Stream) -> None:
        box.put("/w/f", b"1")
        box.rpc("Move", source="/w/f", destination="/w/g")
        box.rpc("Move", source="/w/g", destination="/elsewhere")
        box.put("/w/old/x", b"1")
        box.rpc("Remove", path="/w/old")
        assert stream.events(6) == [
            ("CREATE", "f"), ("WRITE", "f"),
            ("RENAME", "f"), ("CREATE", "g"),
            ("RENAME", "g"),
            ("REMOVE", "old"),
        ]  # fmt: skip

    def test_a_failed_write_is_not_told(self, box: Box, stream: Stream) -> None:
        box.put("/w/f", b"1", headers={"content-encoding": "gzip"})
        box.put("/w/end", b"")
        assert stream.events(1) == [("CREATE", "end")]


class TestRecursion:
    def test_directories_that_come_later_are_watched_with_what_they_hold(
        self, box: Box, root: Path
    ) -> None:
        box.rpc("MakeDir", path="/w/old/er")
        with watched(box, path="/w", recursive=True) as stream:
            stream.next()
            box.put("/w/old/er/f", b"1")
            box.put("/w/new/er/f", b"1")
            told: list[Event] = []
            while ("WRITE", "new/er/f") not in told:
                told += stream.events(1)
            assert told[:2] == [("CREATE", "old/er/f"), ("WRITE", "old/er/f")]
            assert told.count(("CREATE", "new")) == told.count(("CREATE", "new/er/f")) == 1
            box.rpc("Move", source="/w/new", destination="/w/moved")
            box.put("/w/moved/er/g", b"")
            told = []
            while ("CREATE", "moved/er/g") not in told:
                told += stream.events(1)
            assert told[0] == ("RENAME", "new")
            assert not [name for _, name in told if name.startswith("new/")]

    def test_a_directory_that_left_is_not_watched_and_its_name_is_free_for_another(
        self, box: Box
    ) -> None:
        for name in ("1", "2"):
            box.put(f"/elsewhere/{name}/f", b"")
        box.rpc("MakeDir", path="/w")
        with watched(box, path="/w", recursive=True) as stream:
            stream.next()
            box.rpc("Move", source="/elsewhere/1", destination="/w/d")
            assert stream.events(2) == [("CREATE", "d"), ("CREATE", "d/f")]
            box.rpc("Move", source="/w/d", destination="/elsewhere/1")
            assert stream.events(1) == [("RENAME", "d")]
            box.put("/elsewhere/1/not told", b"")
            box.rpc("Move", source="/elsewhere/2", destination="/w/d")
            assert stream.events(2) == [("CREATE", "d"), ("CREATE", "d/f")]

    @pytest.mark.parametrize("mode", [0o000, 0o444], ids=oct)
    def test_a_directory_that_may_not_be_read_is_told_and_ends_nothing(
        self, box: Box, root: Path, mode: int
    ) -> None:
        for path in ("/w/old/f", "/w/open/f"):
            box.put(path, b"")
        (root / "w/old").chmod(mode)
        try:
            with watched(box, path="/w", recursive=True) as stream:
                assert stream.next() == {"start": {}}
                box.put("/w/open/g", b"")
                assert stream.events(2) == [("CREATE", "open/g"), ("WRITE", "open/g")]
                (root / "w/came").mkdir(mode)
                (root / "w/open").chmod(mode)  # while it is watched
                box.put("/w/end", b"")
                told: list[Event] = []
                while ("CREATE", "end") not in told:
                    told += stream.events(1)
            assert told == [("CREATE", "came"), ("CHMOD", "open"), ("CREATE", "end")]
        finally:
            for path in ("old", "came", "open"):
                (root / "w" / path).chmod(0o755)

    def test_halves_of_renames_that_mix_are_told_each_for_itself(self, box: Box) -> None:
        """Into the tree, out of it, and our own renames of uploads, all at once."""
        count = 40
        for name in ("/w/uploaded", "/w/in", "/w/out", "/outside"):
            box.rpc("MakeDir", path=name)
        for n in range(count):
            box.put(f"/outside/in{n}", b"")
            box.put(f"/w/out/{n}", b"")
        work = [
            lambda n: box.put(f"/w/uploaded/{n}", b"x"),
            lambda n: box.rpc("Move", source=f"/outside/in{n}", destination=f"/w/in/{n}"),
            lambda n: box.rpc("Move", source=f"/w/out/{n}", destination=f"/outside/out{n}"),
        ]
        with watched(box, path="/w", recursive=True) as stream:
            stream.next()
            with ThreadPoolExecutor(len(work)) as pool:
                done = [pool.map(one, range(count)) for one in work]
                assert all(answer.status_code == 200 for answers in done for answer in answers)
            box.rpc("MakeDir", path="/w/end")
            told: list[Event] = []
            while ("CREATE", "end") not in told:
                told += stream.events(1)
        expected = [("CREATE", "end")]
        for n in range(count):
            expected += [("CREATE", f"uploaded/{n}"), ("WRITE", f"uploaded/{n}")]
            expected += [("CREATE", f"in/{n}"), ("RENAME", f"out/{n}")]
        assert sorted(told) == sorted(expected)

    def test_links_are_not_followed(self, box: Box, root: Path, tmp_path: Path) -> None:
        box.rpc("MakeDir", path="/w")
        (root / "w/out").symlink_to(tmp_path)
        hand_over(root)
        with watched(box, path="/w", recursive=True) as stream:
            stream.next()
            (tmp_path / "host-file").write_bytes(b"")
            box.put("/w/end", b"")
            assert stream.events(1) == [("CREATE", "end")]
        for path in ("/w/out", "/none"):
            with watched(box, path=path) as stream:
                assert stream.next()["end"]["error"]["code"] == "not_found"
                assert stream.headers["agent-sandbox-error"] == "E4001"


def test_an_event_carries_its_entry_on_request(box: Box) -> None:
    with watched(box, path="/tmp", include_entry=True) as stream:
        stream.next()
        box.put("/tmp/f", b"123")
        created = stream.next()["filesystem"]
        assert created["entry"]["path"] == "/tmp/f"
        assert created["entry"]["size"] == "3"
        box.rpc("Remove", path="/tmp/f")
        assert stream.next()["filesystem"]["type"] == "EVENT_TYPE_WRITE"
        assert "entry" not in stream.next()["filesystem"]


class TestEnds:
    def test_the_end_of_the_sandbox(self, box: Box, stream: Stream) -> None:
        assert box.kill().status_code == 204
        error = stream.next()["end"]["error"]
        assert error == {"code": "unavailable", "message": "The sandbox was not found"}

    def test_the_end_of_the_sandboxs_life(self, express: Service) -> None:
        box = express.create(1)
        with watched(box, path="/") as stream:
            assert stream.next() == {"start": {}}
            assert stream.next()["end"]["error"]["code"] == "unavailable"

    def test_the_removal_of_the_directory(self, box: Box, stream: Stream) -> None:
        box.rpc("Remove", path="/w")
        while "end" not in (message := stream.next()):
            pass
        assert message["end"]["error"]["code"] == "not_found"

    def test_the_removal_of_the_directory_by_others(self, box: Box, root: Path) -> None:
        box.rpc("MakeDir", path="/w")
        with watched(box, path="/w", headers={"keepalive-ping-interval": "1"}) as stream:
            assert stream.next() == {"start": {}}
            (root / "w").rmdir()
            assert stream.next()["end"]["error"]["code"] == "not_found"

    def test_the_callers_deadline(self, box: Box) -> None:
        with watched(box, path="/", headers={"connect-timeout-ms": "50"}) as stream:
            assert stream.next() == {"start": {}}
            assert stream.next()["end"]["error"]["code"] == "deadline_exceeded"

    def test_the_caller_leaving(self, box: Box) -> None:
        def begins() -> bool:
            with watched(box, path="/") as stream:
                return stream.next() == {"start": {}}

        # One that was not given up would take one of the places for good.
        for _ in range(2 * MAX_WATCHES):
            wait_until(begins)


def test_a_quiet_stream_gives_signs_of_life(box: Box) -> None:
    with watched(box, path="/", headers={"keepalive-ping-interval": "1"}) as stream:
        assert stream.next() == {"start": {}}
        assert stream.next() == {"keepalive": {}}
        assert stream.next() == {"keepalive": {}}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        encode_envelope(b""),
        encode_envelope(b"{"),
        encode_envelope(b'{"path":"/"}') * 2,
        b"\1" + encode_envelope(b'{"path":"/"}')[1:],
        b"\2" + encode_envelope(b'{"path":"/"}')[1:],
        b"\0\xff\xff\xff\xff",
        encode_envelope(b'{"path":"/"}') + b"\0",
        encode_envelope(b'{"path":"/etc/passwd"}'),
    ],
)
def test_a_malformed_request_ends_with_an_error(box: Box, body: bytes) -> None:
    headers = box.headers | {"content-type": "application/connect+json"}
    answer = box.http.post("/filesystem.Filesystem/WatchDir", content=body, headers=headers)
    assert answer.status_code == 200
    (end,) = EnvelopeDecoder().feed(answer.content)
    assert end.end
    code = json.loads(end.data)["error"]["code"]
    assert code in ("invalid_argument", "resource_exhausted")


class TestPolled:
    def test_events_wait_for_the_poll(self, box: Box) -> None:
        watcher = box.rpc("CreateWatcher", path="/tmp").json()
        box.put("/tmp/f", b"1")
        told: list[Event] = []

        def poll() -> bool:
            answer = box.rpc("GetWatcherEvents", **watcher)
            told.extend((e["type"], e["name"]) for e in answer.json().get("events", []))
            return len(told) >= 2

        wait_until(poll)
        assert told == [("EVENT_TYPE_CREATE", "f"), ("EVENT_TYPE_WRITE", "f")]
        assert box.rpc("GetWatcherEvents", **watcher).json() == {}
        assert box.rpc("RemoveWatcher", **watcher).json() == {}
        for rpc in ("GetWatcherEvents", "RemoveWatcher"):
            assert box.rpc(rpc, **watcher).status_code == 404

    def test_a_watcher_belongs_to_its_sandbox(self, express: Service, box: Box) -> None:
        watcher = box.rpc("CreateWatcher", path="/tmp").json()
        other = express.create()
        assert other.rpc("GetWatcherEvents", **watcher).status_code == 404
        other.kill()

    def test_there_is_a_bound_for_one_sandbox(self, box: Box) -> None:
        answers = [box.rpc("CreateWatcher", path="/tmp") for _ in range(MAX_WATCHES + 1)]
        assert [one.status_code for one in answers] == [200] * MAX_WATCHES + [429]
        assert answers[-1].headers["agent-sandbox-error"] == "E5014"
        assert answers[-1].json()["code"] == "resource_exhausted"


def test_halves_are_joined_by_their_cookie_in_whatever_order_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel promises no order between renames in different directories."""
    new, old = temporary_name("n"), temporary_name("r")
    tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    watch = Watch(tree, "/", recursive=False, with_entry=False)
    watch.open()
    (number,) = watch._directories
    gone, came = inotify.IN_MOVED_FROM, inotify.IN_MOVED_TO
    batch = [
        (gone, 1, new), (gone, 2, old), (gone, 3, "left"), (came, 4, "entered"),
        (came, 2, "replaced"), (came, 1, "made"),
    ]  # fmt: skip
    raw = [inotify.RawEvent(number, mask, cookie, name) for mask, cookie, name in batch]
    monkeypatch.setattr(inotify, "read_events", lambda fd: raw)
    told = [json.loads(event) for event in watch.read()]
    watch.close()
    tree.close()
    assert [(e["type"].removeprefix("EVENT_TYPE_"), e["name"]) for e in told] == [
        ("RENAME", "left"), ("CREATE", "entered"),
        ("WRITE", "replaced"),
        ("CREATE", "made"), ("WRITE", "made"),
    ]  # fmt: skip


class TestLoss:
    def test_events_that_the_kernel_dropped_are_told(self, tmp_path: Path) -> None:
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        files = [tmp_path / "1", tmp_path / "2"]
        for file in files:
            file.touch()
        tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
        watch = Watch(tree, "/", recursive=False, with_entry=False)
        watch.open()
        for n in range(limit + 10):
            os.chmod(files[n % 2], 0o600)  # two in turn: equal neighbours become one event
        with pytest.raises(TransferError):
            all(iter(watch.read, []))
        watch.close()
        tree.close()

    async def test_a_client_that_never_polls_is_told_after_what_was_kept(self) -> None:
        class Endless:
            """A reader that always has more."""

            closed = False

            async def ready(self) -> None:
                await asyncio.sleep(0)

            async def read(self) -> list[bytes]:
                return [b"{}"] * 1_000

            def close(self) -> None:
                self.closed = True

        reader = Endless()
        watch = PolledWatch(reader, Pending())  # type: ignore[arg-type]  # the part of it that is used
        async with asyncio.timeout(10):
            while not reader.closed:  # noqa: ASYNC110 - the double has no event to wait for
                await asyncio.sleep(0)
        assert len(watch.take()) == 11_000
        with pytest.raises(TransferError):
            watch.take()
