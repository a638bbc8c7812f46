"""The caller's own side of a transfer: what it reads from, and the local files it writes to."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.client.conftest import Connect, sends
from tests.support.bad_peer import BadPeer, answer

from agent_sandbox.client.local_files import LocalFile
from agent_sandbox.errors import TransferError

WRITTEN = answer(b'[{"name":"f","type":"file","path":"/f"}]')

# --- What a write reads -----------------------------------------------------------------------


class Giving:
    """A file whose `read` gives what it was told, one after the other."""

    def __init__(self, *pieces: object) -> None:
        self._pieces = list(pieces)

    def read(self, size: int, /) -> Any:
        return self._pieces.pop(0)


@pytest.mark.parametrize(
    "pieces",
    [(5, b""), ([1, 2], b""), (0, b""), ([], b""), (b"a", 5), (b"a", False), (b"a", {"b": 1})],
    ids=str,
)
async def test_a_file_whose_read_gives_no_data_is_refused(
    connect: Connect, pieces: tuple[object, ...]
) -> None:
    with BadPeer(sends(WRITTEN)) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TypeError):
                await subject.files("write", "/f", Giving(*pieces))
            assert subject.busy() == 0


async def test_a_file_may_give_every_kind_of_bytes_and_text(connect: Connect) -> None:
    with BadPeer(sends(WRITTEN)) as peer:
        async with connect(peer) as subject:
            source = Giving(b"a", bytearray(b"b"), memoryview(b"c"), "é", bytearray())
            await subject.files("write", "/f", source)
            assert peer.data_requests[0].body == "abcé".encode()


async def test_a_file_that_has_nothing_now_has_not_ended(connect: Connect) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with BadPeer(sends(WRITTEN)) as peer, os.fdopen(read_end, "rb", buffering=0) as source:
        os.write(write_end, b"abc")
        async with connect(peer) as subject:
            with pytest.raises(BlockingIOError):
                await subject.files("write", "/f", source)
            assert subject.busy() == 0
    os.close(write_end)


# --- Where a download writes ------------------------------------------------------------------


@pytest.fixture(params=["fifo", "socket", "device", "directory", "link to a fifo"])
def unfit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is no regular file, and that a rename would destroy."""
    goal = tmp_path / "goal"
    if request.param == "fifo":
        os.mkfifo(goal)
    elif request.param == "directory":
        goal.mkdir()
    elif request.param == "device":
        goal = Path("/dev/null")
    elif request.param == "link to a fifo":
        os.mkfifo(tmp_path / "fifo")
        goal.symlink_to("fifo")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(goal))
    return goal


async def test_a_download_replaces_nothing_but_a_regular_file_and_asks_before_it_sends(
    connect: Connect, unfit: Path
) -> None:
    before = os.lstat(unfit)
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(OSError):  # noqa: PT011 - which one is the system's
                await subject.files("download", "/f", unfit)
            assert peer.data_requests == []
    after = os.lstat(unfit)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
async def test_a_download_through_a_link_writes_the_file_that_it_names(
    connect: Connect, tmp_path: Path, there: bool
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    target, link = tmp_path / "b" / "target", tmp_path / "a" / "link"
    link.symlink_to("../b/target")
    if there:
        target.write_bytes(b"old")
        target.chmod(0o640)
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            assert await subject.files("download", "/f", link) == 3
    assert link.is_symlink()
    assert target.read_bytes() == b"abc"
    assert not there or target.stat().st_mode & 0o777 == 0o640
    assert (os.listdir(link.parent), os.listdir(target.parent)) == (["link"], ["target"])


async def test_a_download_through_links_that_lead_nowhere_is_the_systems_error(
    connect: Connect, tmp_path: Path
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(OSError):  # noqa: PT011 - which one is the system's
                await subject.files("download", "/f", loop)
            assert peer.data_requests == []
    assert loop.is_symlink()


def test_a_download_that_the_disk_holds_less_of_replaces_nothing(tmp_path: Path) -> None:
    goal = tmp_path / "goal"
    goal.write_bytes(b"old")
    sink = LocalFile(goal, None, None)
    sink.feed(b"abcdef")
    sink.spill()
    assert sink._file is not None
    sink._file.flush()
    os.truncate(sink._file.fileno(), 3)
    with pytest.raises(TransferError):
        sink.finish()
    sink.discard()
    assert goal.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["goal"]


def test_ctrl_c_right_after_the_temporary_file_was_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.open

    def interrupted(path: Path, flags: int, mode: int) -> NoReturn:
        os.close(made(path, flags, mode))
        raise KeyboardInterrupt

    file = LocalFile(tmp_path / "goal", None, None)
    file.feed(b"data")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.spill()
    file.discard()
    assert list(tmp_path.iterdir()) == []
