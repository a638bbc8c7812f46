"""Paths: what is a name, what is refused, and with which error."""

from __future__ import annotations

import os
import socket
import stat
import unicodedata
from pathlib import Path

import pytest
from tests.support.express import Box

LONG = "/" + "/".join(["d" * 254] * 16)  # 4,081 bytes
LITERAL = [
    "/a",
    "/..b",
    "/a..",
    "/...",
    "/%2e%2e/x",
    "/a\\..\\b",
    "/ spaces  kept ",
    "/new\nline",
    "/\x1b[31m",
    "/\u202etxt",
    "/" + unicodedata.normalize("NFC", "é"),
    "/" + unicodedata.normalize("NFD", "é"),
    "/" + "n" * 255,
    "/" + "ü" * 127,
    "/+&=?#;",
    LONG,
]
REFUSED = [
    "",
    "/..",
    "/a/..",
    "/a/../b",
    "../a",
    "~/../a",
    "/nul\0",
    "/" + "d" * 256,
    "/" + "ü" * 128,
    LONG + "/" + "x" * 20,
    "/" + "\U0001f600" * 1_024,
    "/" + "a/" * 2_047 + "bc",
]
DIRECTORY_ONLY = ["/", "/tmp/", "/tmp/.", "~", "/tmp/f/"]


@pytest.mark.parametrize("path", LITERAL)
def test_a_name_is_taken_literally(box: Box, root: Path, path: str) -> None:
    assert box.put(path, path.encode()).json()[0]["path"] == path
    assert box.get(path).content == path.encode()
    assert path == LONG or (root / path[1:]).is_file()  # its path on the host is too long
    assert box.rpc("Stat", path=path).json()["entry"]["path"] == path


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("a", "/home/user/a"),
        ("./a", "/home/user/a"),
        ("~/a", "/home/user/a"),
        ("~a", "/home/user/~a"),
        ("//a", "/a"),
        ("/a/./b", "/a/b"),
        ("/a//b", "/a/b"),
    ],
)
def test_every_spelling_has_one_form(box: Box, given: str, canonical: str) -> None:
    assert box.put(given, b"x").json()[0]["path"] == canonical
    assert box.get(canonical).content == b"x"


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_outside_the_rules_is_refused_everywhere(box: Box, root: Path, path: str) -> None:
    before = sorted(root.rglob("*"))
    answers = [box.get(path), box.put(path, b"x"), box.rpc("Move", source="/etc", destination=path)]
    answers += [box.rpc(name, path=path) for name in ("Stat", "ListDir", "MakeDir", "Remove")]
    answers += [box.rpc("Move", source=path, destination="/b"), box.rpc("CreateWatcher", path=path)]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.headers["agent-sandbox-error"] == "E2002"
        assert not path or path not in answer.text
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("path", DIRECTORY_ONLY)
def test_a_file_has_no_directorys_path(box: Box, path: str) -> None:
    box.put("/tmp/f", b"x")
    for answer in (box.get(path), box.put(path, b"y")):
        assert answer.status_code == 400
        assert answer.headers["agent-sandbox-error"] in ("E2002", "E4004")
    assert box.get("/tmp/f").content == b"x"


def test_the_kernels_longest_path_is_no_internal_error(box: Box) -> None:
    path = "/" + "/".join(["a" * 127] * 32)  # 4,096 bytes: one more than the kernel takes
    assert len(path) == 4_096
    for answer in (box.get(path), box.put(path, b"x"), box.rpc("Stat", path=path)):
        assert answer.status_code == 400
        assert answer.headers["agent-sandbox-error"] == "E2002"


def test_a_lone_surrogate_is_refused(box: Box) -> None:
    headers = box.headers | {"content-type": "application/json"}
    answer = box.http.post(
        "/filesystem.Filesystem/Stat", content=b'{"path":"/\\ud800"}', headers=headers
    )
    assert answer.status_code == 400
    assert box.http.get("/files?path=/%ED%A0%80", headers=box.headers).status_code == 400


class TestKinds:
    @pytest.fixture(params=["directory", "fifo", "socket", "device", "loop"])
    def odd(self, request: pytest.FixtureRequest, root: Path) -> str:
        path = root / "odd"
        if request.param == "directory":
            path.mkdir()
        elif request.param == "fifo":
            os.mkfifo(path, 0o666)
        elif request.param == "socket":
            directory = os.open(root, os.O_PATH)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"/proc/self/fd/{directory}/odd")  # the real path is too long
            os.close(directory)
        elif request.param == "loop":
            path.symlink_to("odd")
        elif os.geteuid() == 0:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        else:
            os.mkfifo(path)  # only root makes devices
        return "/odd"

    def test_what_is_no_file_is_refused_at_once(self, box: Box, root: Path, odd: str) -> None:
        for answer in (box.get(odd, timeout=2), box.put(odd, b"x", timeout=2)):
            assert answer.status_code == 400
            assert answer.headers["agent-sandbox-error"] == "E4004"
        assert not list(root.rglob(".~agent-sandbox.*"))

    def test_it_can_be_looked_at_and_removed(self, box: Box, root: Path, odd: str) -> None:
        assert box.rpc("Stat", path=odd).status_code == 200
        assert box.rpc("ListDir", path="/").status_code == 200
        assert box.rpc("Remove", path=odd).status_code == 200
        assert not (root / "odd").is_symlink()
        assert not (root / "odd").exists()


@pytest.mark.parametrize("call", ["get", "put", "Stat", "ListDir", "MakeDir", "Remove"])
def test_a_file_in_the_middle_of_a_path_is_400(box: Box, call: str) -> None:
    box.put("/f", b"x")
    path = "/f/x"
    answer = {"get": box.get, "put": box.put}[call](path) if call in ("get", "put") else None
    answer = answer or box.rpc(call, path=path)
    assert answer.status_code == 400
    assert answer.headers["agent-sandbox-error"] == "E4004"


class TestPermissions:
    def test_what_the_user_may_not_write_is_403(self, box: Box, root: Path) -> None:
        box.put("/locked/f", b"old")
        (root / "locked/f").chmod(0o444)
        answer = box.put("/locked/f", b"new")
        assert answer.status_code == 403
        assert answer.headers["agent-sandbox-error"] == "E4002"
        (root / "locked/f").chmod(0o644)
        (root / "locked").chmod(0o555)
        assert box.put("/locked/f", b"new").status_code == 403
        assert box.put("/locked/g", b"new").status_code == 403
        assert box.rpc("MakeDir", path="/locked/d").status_code == 403
        assert box.rpc("Remove", path="/locked/f").status_code == 403
        assert box.rpc("Move", source="/locked/f", destination="/f").status_code == 403
        assert box.get("/locked/f").content == b"old"
        assert not list(root.rglob(".~agent-sandbox.*"))
        (root / "locked").chmod(0o755)

    def test_what_the_user_may_not_read_is_403(self, box: Box, root: Path) -> None:
        box.put("/secret/f", b"x")
        (root / "secret/f").chmod(0o000)
        for answer in (box.get("/secret/f"),):
            assert answer.status_code == 403
            assert answer.headers["agent-sandbox-error"] == "E4002"
        (root / "secret").chmod(0o000)
        assert box.get("/secret/f").status_code == 403
        assert box.rpc("ListDir", path="/secret").status_code == 403
        assert box.rpc("ListDir", path="/", depth=9).status_code == 200
        assert box.rpc("Remove", path="/secret").status_code == 200
        assert not (root / "secret").exists()


def test_a_missing_file_is_404(box: Box) -> None:
    for answer in (box.get("/none"), box.rpc("Stat", path="/none"), box.rpc("ListDir", path="/n")):
        assert answer.status_code == 404
        assert answer.headers["agent-sandbox-error"] == "E4001"
    assert box.rpc("Move", source="/none", destination="/x/y").status_code == 404
    assert box.rpc("Stat", path="/x").status_code == 404, "no parents for a move that cannot be"
