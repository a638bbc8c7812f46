"""Nothing in a sandbox's tree leads out of it: links, magic links, and swaps in mid-operation."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.express import Box, Service, hand_over

from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.openat2 import open_below, open_in_root

SWAPS = int(os.environ.get("AGENT_SANDBOX_SWAPS", "100000"))
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@pytest.fixture
def host() -> Iterator[Path]:
    """A directory of the host that the service's user could write, if it got there."""
    # Not below tmp_path: its parents are closed to other users, which would hide an escape.
    directory = Path(tempfile.mkdtemp(prefix="host-"))
    directory.chmod(0o777)
    (directory / "secret").write_bytes(b"secret of the host")
    (directory / "secret").chmod(0o666)
    yield directory
    shutil.rmtree(directory)


def untouched(host: Path) -> bool:
    names = [path.name for path in host.iterdir()]
    return names == ["secret"] and (host / "secret").read_bytes() == b"secret of the host"


def ways(host: Path, target: str) -> list[str]:
    return [
        f"{host}/{target}",
        f"../../../../../../../../../..{host}/{target}",
        f"/proc/self/root{host}/{target}",
    ]


@pytest.mark.parametrize("way", range(3))
class TestLinks:
    def test_a_leaf_that_points_out_is_not_found(
        self, box: Box, root: Path, host: Path, way: int
    ) -> None:
        (root / "tmp/leaf").symlink_to(ways(host, "secret")[way])
        hand_over(root)
        assert box.get("/tmp/leaf").status_code == 404
        assert box.put("/tmp/leaf", b"overwritten").status_code == 404
        stat = box.rpc("Stat", path="/tmp/leaf").json()["entry"]
        assert stat["type"] == "FILE_TYPE_SYMLINK"
        assert stat["size"] != str(len(b"secret of the host"))
        assert box.rpc("Remove", path="/tmp/leaf").status_code == 200
        assert untouched(host)

    def test_a_parent_that_points_out_is_not_found(
        self, box: Box, root: Path, host: Path, way: int
    ) -> None:
        (root / "tmp/way").symlink_to(ways(host, "")[way].rstrip("/"))
        hand_over(root)
        assert box.get("/tmp/way/secret").status_code == 404
        assert box.put("/tmp/way/new", b"x").status_code in (400, 404)
        assert box.rpc("MakeDir", path="/tmp/way/new").status_code in (400, 404)
        assert box.rpc("ListDir", path="/tmp/way").status_code == 404
        assert box.rpc("ListDir", path="/tmp", depth=9).status_code == 200
        assert box.rpc("Remove", path="/tmp/way/secret").status_code == 200
        assert box.rpc("Move", source="/tmp/way/secret", destination="/s").status_code == 404
        assert box.rpc("Move", source="/etc/group", destination="/tmp/way/s").status_code != 200
        assert box.rpc("CreateWatcher", path="/tmp/way").status_code == 404
        assert untouched(host)

    def test_removing_a_tree_stops_at_links(
        self, box: Box, root: Path, host: Path, way: int
    ) -> None:
        (root / "tmp/tree/deep").mkdir(parents=True)
        (root / "tmp/tree/deep/way").symlink_to(ways(host, "")[way])
        (root / "tmp/tree/leaf").symlink_to(ways(host, "secret")[way])
        hand_over(root)
        assert box.rpc("Remove", path="/tmp/tree").status_code == 200
        assert not (root / "tmp/tree").exists()
        assert untouched(host)

    def test_the_end_of_a_sandbox_stops_at_links(
        self, box: Box, root: Path, host: Path, way: int
    ) -> None:
        (root / "way").symlink_to(ways(host, "")[way])
        assert box.kill().status_code == 204
        assert untouched(host)


@pytest.mark.parametrize(
    "link", ["target", "./target", "/tmp/target", "../tmp/target", "/../tmp/target"]
)
def test_a_link_that_stays_inside_is_followed_as_by_a_write_in_place(
    box: Box, root: Path, link: str
) -> None:
    (root / "tmp/link").symlink_to(link)
    hand_over(root)
    assert box.put("/tmp/link", b"1").status_code == 200, "the target is made"
    (root / "tmp/target").chmod(0o640)
    assert box.put("/tmp/link", b"22").status_code == 200
    assert (root / "tmp/link").is_symlink()
    assert (root / "tmp/target").read_bytes() == b"22"
    assert (root / "tmp/target").stat().st_mode & 0o777 == 0o640
    assert box.get("/tmp/link").content == b"22"


def test_links_are_joined_as_the_kernel_joins_them(box: Box, root: Path) -> None:
    (root / "x/y").mkdir(parents=True)
    (root / "a").mkdir()
    (root / "a/b").symlink_to("/x/y")
    (root / "x/y/link").symlink_to("../target")
    hand_over(root)
    assert box.put("/a/b/link", b"1").status_code == 200
    assert (root / "x/target").read_bytes() == b"1"


def test_a_link_to_a_directory_is_no_file(box: Box, root: Path) -> None:
    for number, target in enumerate(("/tmp", "/tmp/", ".", "..", "/")):
        (root / f"l{number}").symlink_to(target)
        assert box.put(f"/l{number}", b"x").status_code == 400
        assert box.get(f"/l{number}").status_code == 400


def test_magic_links_are_refused() -> None:
    with Descriptor(os.open("/", os.O_PATH | os.O_DIRECTORY)) as root_fd:
        for path in ("/proc/self/root/etc/passwd", "/proc/self/cwd", f"/proc/self/fd/{root_fd}"):
            with pytest.raises(OSError, match="symbolic links"):
                open_in_root(root_fd, path, os.O_RDONLY)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/environ", "/proc/self/root/etc/shadow", "/proc/self/fd/3", "/proc/self/mem",
        "/proc/1/environ", "/proc/1/root/etc/shadow", "/proc/1/cwd/etc/shadow", "/proc/1/mem",
        "/proc/thread-self/environ", "/proc/SERVICE/environ", "/proc/SERVICE/root/etc/shadow",
        "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/kcore", "/dev/mem",
    ],
)  # fmt: skip
def test_proc_is_the_sandboxs_own_or_closed(express: Service, box: Box, path: str) -> None:
    path = path.replace("SERVICE", str(express.process.pid))
    down = box.get(path)
    assert down.status_code in (200, 400, 403, 404)
    for secret in (b"AGENT_SANDBOX", str(express.state_dir).encode(), b"root:"):
        assert secret not in down.content
    up = box.put(path, b"x")
    assert up.status_code in (400, 403, 404)


def test_below_means_below(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to("sub")
    (tmp_path / "in/sub").mkdir()
    with Descriptor(os.open(tmp_path / "in", os.O_PATH | os.O_DIRECTORY)) as fd:
        os.close(open_below(fd, "sub", os.O_PATH))
        for path in ("..", "/", "link", "sub/../.."):
            with pytest.raises(OSError, match=r".+"):
                open_below(fd, path, os.O_PATH)


class Swapper(threading.Thread):
    """Exchanges two names again and again, as somebody in the sandbox could."""

    def __init__(self, one: Path, two: Path, times: int) -> None:
        super().__init__()
        self._names = os.fsencode(one), os.fsencode(two)
        self._times = times

    def run(self) -> None:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        one, two = self._names
        for _ in range(self._times):
            assert renameat2(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE) == 0


def test_a_directory_swapped_for_a_link_never_leads_out(box: Box, root: Path, host: Path) -> None:
    (root / "d").mkdir()
    (root / "e").symlink_to(host)
    hand_over(root)
    swapper = Swapper(root / "d", root / "e", SWAPS)
    swapper.start()
    statuses = set()
    large = b"y" * 1_100_000
    while swapper.is_alive():
        statuses.add(box.put("/d/secret", b"written").status_code)
        statuses.add(box.put("/d/large", large).status_code)
        statuses.add(box.rpc("MakeDir", path="/d/new").status_code)
        statuses.add(box.rpc("Remove", path="/d/new").status_code)
        down = box.get("/d/secret")
        assert down.content != b"secret of the host"
        statuses.add(down.status_code)
    swapper.join()
    assert untouched(host)
    assert 200 in statuses
    assert statuses <= {200, 400, 404, 409}


def test_a_file_swapped_for_a_link_never_leads_out(box: Box, root: Path, host: Path) -> None:
    box.rpc("MakeDir", path="/d")
    (root / "d/f").write_bytes(b"inside")
    (root / "d/link").symlink_to(host / "secret")
    hand_over(root)
    swapper = Swapper(root / "d/f", root / "d/link", SWAPS)
    swapper.start()
    while swapper.is_alive():
        # Only looking: a write would make a file of the link, and nothing would be left to swap.
        assert box.get("/d/f").content != b"secret of the host"
        assert box.rpc("Stat", path="/d/f").status_code == 200
    swapper.join()
    for _ in range(500):
        swapper = Swapper(root / "d/f", root / "d/link", 50)
        swapper.start()
        assert box.put("/d/f", b"inside").status_code in (200, 404)
        swapper.join()
        for path in (root / "d/f", root / "d/link"):
            path.unlink()
        (root / "d/f").write_bytes(b"inside")
        (root / "d/link").symlink_to(host / "secret")
        hand_over(root)
    assert untouched(host)


def test_a_huge_sparse_file_is_streamed_and_can_be_left(box: Box, root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with box.http.stream("GET", "/files", params={"path": "/sparse"}, headers=box.headers) as down:
        assert down.headers.get("content-length", str(1 << 40)) == str(1 << 40)
        assert next(down.iter_raw())
    assert box.get("/etc/group").status_code == 200


def test_a_tree_deeper_than_any_path_is_listed_and_removed(box: Box, root: Path) -> None:
    owner = root.stat()
    before = sorted(path.name for path in root.iterdir())
    (root / "deep").mkdir()
    fd = os.open(root / "deep", os.O_RDONLY)
    for _ in range(2_200):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.fchown(fd, owner.st_uid, owner.st_gid)
        os.close(fd)
        fd = below
    os.fchown(fd, owner.st_uid, owner.st_gid)
    os.close(fd)
    listed = box.rpc("ListDir", path="/deep", depth=2**32 - 1)
    assert listed.status_code == 200
    assert len(listed.json()["entries"]) > 1_000
    assert box.rpc("Remove", path="/deep").status_code == 200
    assert sorted(path.name for path in root.iterdir()) == before
