"""The RPCs of `filesystem.Filesystem`, apart from watching."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.express import Box

from agent_sandbox.errors import FileOperationError, SizeLimitError
from agent_sandbox.express import tree as tree_module
from agent_sandbox.express.names import temporary_name
from agent_sandbox.express.removal import remove_tree
from agent_sandbox.express.tree import Tree


def names(box: Box, path: str, **more: int) -> list[str]:
    answer = box.rpc("ListDir", path=path, **more)
    assert answer.status_code == 200, answer.text
    return [entry["path"] for entry in answer.json().get("entries", [])]


def test_a_listing_is_sorted_parents_first_and_as_deep_as_asked(box: Box) -> None:
    for path in ("/w/b/2", "/w/b/1", "/w/a/x/y", "/w/c"):
        box.put(path, b"1")
    assert names(box, "/w") == names(box, "/w", depth=1) == ["/w/a", "/w/b", "/w/c"]
    assert names(box, "/w/", depth=2) == [
        "/w/a", "/w/a/x", "/w/b", "/w/b/1", "/w/b/2", "/w/c",
    ]  # fmt: skip
    assert "/w/a/x/y" in names(box, "/", depth=2**32 - 1)
    assert names(box, "/home/user") == []


@pytest.mark.parametrize("mode", [0o000, 0o444], ids=oct)
def test_a_directory_that_may_not_be_read_is_listed_and_not_entered(
    box: Box, root: Path, mode: int
) -> None:
    for path in ("/d/locked/f", "/d/open/f"):
        box.put(path, b"")
    (root / "d/locked").chmod(mode)
    try:
        answer = box.rpc("ListDir", path="/d", depth=9)
        assert answer.status_code == 200
        found = [entry["path"] for entry in answer.json()["entries"]]
        assert found == ["/d/locked", "/d/open", "/d/open/f"]
        refused = box.rpc("ListDir", path="/d/locked", depth=1)
        assert (refused.status_code, refused.headers["agent-sandbox-error"]) == (403, "E4002")
    finally:
        (root / "d/locked").chmod(0o755)


@pytest.mark.parametrize("depth", [-1, 2**32, 1.5, "x", True])
def test_a_depth_that_is_none_is_refused(box: Box, depth: Any) -> None:
    assert box.rpc("ListDir", path="/", depth=depth).status_code == 400


def test_an_entry_says_what_it_is(box: Box, root: Path) -> None:
    box.put("/w/f", b"12345")
    (root / "w/f").chmod(0o640)
    (root / "w/l").symlink_to("/else/where")
    os.mkfifo(root / "w/p")
    os.mkdir(root / "w/d")
    by_name = {e["name"]: e for e in box.rpc("ListDir", path="/w").json()["entries"]}
    file = by_name["f"]
    assert file["type"] == "FILE_TYPE_FILE"
    assert file["size"] == "5", "protobuf JSON writes 64-bit numbers as text"
    assert (file["mode"], file["permissions"]) == (0o640, "-rw-r-----")
    assert (file["owner"], file["group"]) == ("user", "user")
    assert file["modifiedTime"].endswith("Z")
    assert "isSymlink" not in file
    assert by_name["d"]["type"] == "FILE_TYPE_DIRECTORY"
    link = by_name["l"]
    assert (link["type"], link["symlinkTarget"]) == ("FILE_TYPE_SYMLINK", "/else/where")
    assert link["isSymlink"] is True
    assert "type" not in by_name["p"], "neither of E2B's kinds"
    for name, entry in by_name.items():
        assert box.rpc("Stat", path=f"/w/{name}").json()["entry"] == entry


def test_a_name_that_is_no_utf8_is_shown_and_harmless(box: Box, root: Path) -> None:
    box.rpc("MakeDir", path="/w")
    with open(os.fsencode(root / "w") + b"/\xff", "wb"):
        pass
    os.mkdir(os.fsencode(root / "w") + b"/d\xfe")
    os.symlink(b"\xfd", os.fsencode(root / "w") + b"/l")
    assert names(box, "/w", depth=3) == ["/w/d\ufffd", "/w/l", "/w/\ufffd"]


class TestListingBounds:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Iterator[Tree]:
        for n in range(10):
            (tmp_path / f"{n}" / "sub").mkdir(parents=True)
        tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
        yield tree
        tree.close()

    def test_bytes_are_bounded_with_all_that_is_read(
        self, tree: Tree, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = sum(len(entry) + 1 for entry in tree.list("/", 2))
        monkeypatch.setattr(tree_module, "MAX_LIST_BYTES", size)
        assert len(tree.list("/", 2)) == 20
        monkeypatch.setattr(tree_module, "MAX_LIST_BYTES", size - 1)
        with pytest.raises(SizeLimitError) as raised:
            tree.list("/", 2)
        assert raised.value.limit == size - 1
        assert len(tree.list("/", 1)) == 10

    def test_entries_are_bounded(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tree_module, "MAX_LIST_ENTRIES", 20)
        assert len(tree.list("/", 2)) == 20
        monkeypatch.setattr(tree_module, "MAX_LIST_ENTRIES", 19)
        with pytest.raises(SizeLimitError):
            tree.list("/", 2)

    def test_the_metadata_of_one_entry_is_bounded(
        self, tree: Tree, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "listxattr", lambda *_, **__: [f"user.e2b.{n}" for n in range(9)])
        monkeypatch.setattr(os, "getxattr", lambda *_, **__: b"v" * 30_000)
        assert len(tree.stat("/1").metadata) == 2

    def test_a_time_beyond_dates_is_the_last_date(
        self, tree: Tree, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.fstat

        def late(fd: int) -> os.stat_result:
            return os.stat_result((*real(fd)[:8], 2**50, 0))

        monkeypatch.setattr(os, "fstat", late)
        modified = tree.stat("/1").modified_time
        assert modified is not None
        assert modified.isoformat() == "9999-12-31T23:59:59+00:00"

    def test_a_long_answer_comes_whole(self, box: Box, root: Path) -> None:
        (root / "tmp/l").mkdir()
        wanted = [f"/tmp/l/{n:04}{'x' * 200}" for n in range(2_000)]
        for path in wanted:
            (root / path[1:]).touch()
        assert names(box, "/tmp/l") == wanted


def test_making_a_directory_makes_parents_once(box: Box) -> None:
    made = box.rpc("MakeDir", path="/a/b/c")
    assert made.json()["entry"]["path"] == "/a/b/c"
    for path in ("/a/b/c", "/a/b/c/", "/", "/etc/passwd"):
        again = box.rpc("MakeDir", path=path)
        assert again.status_code == 409
        assert again.json()["code"] == "already_exists"
        assert again.headers["agent-sandbox-error"] == "E4005"


class TestMove:
    def test_it_replaces_a_file_in_one_step(self, box: Box) -> None:
        box.put("/a", b"new")
        box.put("/b", b"old")
        assert box.rpc("Move", source="/a", destination="/b").json()["entry"]["path"] == "/b"
        assert box.get("/b").content == b"new"
        assert box.get("/a").status_code == 404

    def test_it_moves_a_directory_and_a_link_itself(self, box: Box, root: Path) -> None:
        box.put("/d/f", b"x")
        (root / "l").symlink_to("/d")
        assert box.rpc("Move", source="/l", destination="/x/l").status_code == 200
        assert (root / "x/l").is_symlink()
        assert box.rpc("Move", source="/d/", destination="/x/d").status_code == 200
        assert box.get("/x/d/f").content == b"x"

    @pytest.mark.parametrize(
        ("source", "destination", "status"),
        [
            ("/d", "/d/sub/d", 400),
            ("/d", "/f", 400),
            ("/f", "/d", 400),
            ("/e", "/d", 409),
            ("/", "/x", 403),
            ("/f", "/", 403),
            ("/none", "/x", 404),
        ],
    )
    def test_what_cannot_be_moved_stays(
        self, box: Box, source: str, destination: str, status: int
    ) -> None:
        box.put("/d/full", b"x")
        box.put("/e/full", b"x")
        box.put("/f", b"x")
        assert box.rpc("Move", source=source, destination=destination).status_code == status
        for path in ("/d/full", "/e/full", "/f"):
            assert box.get(path).content == b"x"


class TestRemove:
    def test_it_removes_files_links_and_whole_trees(self, box: Box, root: Path) -> None:
        box.put("/d/e/f", b"x")
        box.put("/g", b"x")
        (root / "l").symlink_to("g")
        before = names(box, "/")
        assert {"/d", "/g", "/l"} <= set(before)
        for path in ("/l", "/d", "/g", "/home/user"):
            assert box.rpc("Remove", path=path).json() == {}
        assert names(box, "/") == [path for path in before if path not in ("/d", "/g", "/l")]

    def test_absence_is_success(self, box: Box) -> None:
        for path in ("/none", "/none/too"):
            assert box.rpc("Remove", path=path).status_code == 200

    @pytest.mark.parametrize("instead", ["nothing", "file", "link"])
    def test_what_takes_the_place_of_a_directory_goes_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str
    ) -> None:
        (tmp_path / "d").mkdir()

        def swap(purpose: str) -> str:  # between finding a directory and moving it aside
            (tmp_path / "d").rmdir()
            if instead == "file":
                (tmp_path / "d").touch()
            elif instead == "link":
                (tmp_path / "d").symlink_to("/etc")
            return temporary_name(purpose)

        monkeypatch.setattr(tree_module, "temporary_name", swap)
        tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
        tree.remove("/d")
        tree.close()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("instead", ["nothing", "file", "more"])
    def test_what_changes_in_a_tree_on_its_way_out_goes_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str
    ) -> None:
        deep = tmp_path / "d/a/b"
        deep.mkdir(parents=True)
        real = secrets.token_hex
        swapped: list[Path] = []

        def swap(size: int) -> str:  # before a directory in the tree is moved up
            for found in tmp_path.glob("*/a/b"):
                if instead == "more":
                    (found.parent / "new/dir").mkdir(parents=True, exist_ok=True)
                else:
                    found.rmdir()
                    if instead == "file":
                        found.touch()
                swapped.append(found)
            return real(size)

        monkeypatch.setattr(secrets, "token_hex", swap)
        remove_tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), "d")
        assert swapped
        assert list(tmp_path.iterdir()) == []

    def test_what_cannot_be_removed_keeps_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "")

        (tmp_path / "d").mkdir()
        monkeypatch.setattr(tree_module, "remove_tree", fail)
        tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
        with pytest.raises(FileOperationError):
            tree.remove("/d")
        tree.close()
        assert [one.name for one in tmp_path.iterdir()] == ["d"]

    def test_the_root_stays(self, box: Box) -> None:
        assert box.rpc("Remove", path="/").status_code == 403

    def test_a_wide_and_locked_tree_goes(self, box: Box, root: Path) -> None:
        before = names(box, "/")
        for n in range(300):
            box.rpc("MakeDir", path=f"/w/{n}/x/y")
        for mode, path in [(0o000, "w/0/x/y"), (0o000, "w/0"), (0o555, "w/1"), (0o444, "w")]:
            (root / path).chmod(mode)
        assert box.rpc("Remove", path="/w").status_code == 200
        assert not (root / "w").exists()
        assert names(box, "/") == before


class TestProtocol:
    def post(self, box: Box, body: bytes, rpc: str = "Stat", **headers: str) -> Any:
        lines = box.headers | {"content-type": "application/json"}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        return box.http.post(f"/filesystem.Filesystem/{rpc}", content=body, headers=lines)

    @pytest.mark.parametrize(
        "body",
        [b"{", b"[]", b"null", b'"x"', b"\xff", b'{"path":1}', b'{"path":["/"]}', b"{}", b"",
         b'{"path":"/","path2":' + b"[" * 5_000],
    )  # fmt: skip
    def test_a_malformed_message_is_400(self, box: Box, body: bytes) -> None:
        answer = self.post(box, body)
        assert answer.status_code == 400
        assert answer.json()["code"] == "invalid_argument"
        assert answer.headers["agent-sandbox-error"].startswith("E2")
        assert self.post(box, b'{"path":"/"}').status_code == 200

    def test_unknown_fields_and_nulls_are_ignored(self, box: Box) -> None:
        assert self.post(box, b'{"path":"/","new":{"a":[1]},"depth":null}').status_code == 200

    @pytest.mark.parametrize("field", ["includeEntry", "include_entry"])
    def test_both_spellings_of_a_field_are_read(self, box: Box, field: str) -> None:
        answer = self.post(box, b'{"path":"/","%s":true}' % field.encode(), "CreateWatcher")
        assert answer.status_code == 200

    def test_a_long_message_is_413(self, box: Box) -> None:
        answer = self.post(box, b'{"path":"/' + b"x" * 70_000 + b'"}')
        assert answer.status_code == 413
        assert answer.json()["code"] == "resource_exhausted"
        assert self.post(box, b'{"path":"/"}').status_code == 200

    def test_an_unknown_rpc_is_404(self, box: Box) -> None:
        answer = self.post(box, b"{}", "Chmod")
        assert answer.status_code == 404
        assert answer.json()["code"] == "unimplemented"
        assert box.http.post("/other.Service/List", headers=box.headers).status_code == 404

    @pytest.mark.parametrize(
        "headers",
        [
            {"content_type": "application/proto"},
            {"content_type": "application/connect+json"},
            {"connect_protocol_version": "2"},
            {"content_encoding": "gzip"},
            {"authorization": "Basic !"},
            {"authorization": "Basic bm9ib2R5Og=="},
            {"authorization": "Bearer x"},
        ],
    )
    def test_another_protocol_is_refused(self, box: Box, headers: dict[str, str]) -> None:
        assert self.post(box, b'{"path":"/"}', **headers).status_code == 400

    def test_a_user_in_basic_credentials_changes_nothing(self, box: Box) -> None:
        answer = self.post(box, b'{"path":"~"}', authorization="Basic cm9vdDo=")
        assert answer.json()["entry"]["path"] == "/home/user"
