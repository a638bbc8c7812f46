"""`/files`: content of every kind up and down, atomically, with the right errors."""

from __future__ import annotations

import base64
import collections
import errno
import fcntl
import gzip
import hashlib
import os
import signal
import stat
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.express import Box, Service

from agent_sandbox.errors import ArgumentError, StorageFullError
from agent_sandbox.express.atomic import AtomicFile
from agent_sandbox.express.tree import Tree

MIB = 1 << 20
PLAIN = {"accept-encoding": "identity"}
SIZES = [0, 1, 2, 1_023, 65_536, MIB - 1, MIB, MIB + 1, 3 * MIB + 17]


def no_temporary_file(root: Path) -> bool:
    return not list(root.rglob(".~agent-sandbox.*"))


def content(size: int) -> bytes:
    return os.urandom(size)


class TestRaw:
    @pytest.mark.parametrize("size", SIZES)
    def test_what_goes_up_comes_down(self, box: Box, root: Path, size: int) -> None:
        data = content(size)
        answer = box.put("/tmp/artifact.bin", data)
        assert answer.json() == [
            {
                "name": "artifact.bin",
                "type": "file",
                "path": "/tmp/artifact.bin",
                "size": size,
                "metadata": {},
            }
        ]
        down = box.get("/tmp/artifact.bin")
        assert down.status_code == 200
        assert down.headers["content-length"] == str(size)
        assert down.headers["cache-control"] == "no-store"
        assert down.content == data
        assert (root / "tmp/artifact.bin").read_bytes() == data
        assert no_temporary_file(root)

    @pytest.mark.parametrize("cut", [1, 1_000, MIB])
    def test_a_chunked_body_is_the_same_however_it_is_cut(self, box: Box, cut: int) -> None:
        data = content(2 * MIB + 5 if cut > 1 else 300)
        pieces = (data[at : at + cut] for at in range(0, len(data), cut))
        answer = box.http.post("/files", params={"path": "/a"}, content=pieces, headers=box.headers)
        assert answer.status_code == 200
        assert box.get("/a").content == data

    @pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
    def test_a_gzip_body_is_unpacked(self, box: Box, encoding: str) -> None:
        data = bytes(5 * MIB) + content(1_000)
        packed = gzip.compress(data[: 4 * MIB]) + gzip.compress(data[4 * MIB :])
        headers = {"content-encoding": encoding}
        assert box.put("/a", packed, headers=headers).json()[0]["size"] == len(data)
        assert box.get("/a").content == data

    @pytest.mark.parametrize(
        ("encoding", "body"),
        [
            ("gzip", b""),
            ("gzip", b"no gzip"),
            ("gzip", gzip.compress(b"x" * 1_000)[:-1]),
            ("gzip", gzip.compress(b"x") + b"trailing"),
            ("gzip", zlib.compress(b"x")),
            ("br", b"x"),
            ("gzip, gzip", gzip.compress(gzip.compress(b"x"))),
        ],
    )
    def test_a_bad_encoding_changes_nothing(
        self, box: Box, root: Path, encoding: str, body: bytes
    ) -> None:
        box.put("/a", b"old")
        answer = box.put("/a", body, headers={"content-encoding": encoding})
        assert answer.status_code == 400
        assert answer.headers["agent-sandbox-error"] == "E2001"
        assert box.get("/a").content == b"old"
        assert no_temporary_file(root)

    def test_the_digest_is_answered_on_request(self, box: Box) -> None:
        data = content(2 * MIB)
        answer = box.put("/a", data, headers={"want-repr-digest": "sha-256=1"})
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"

    def test_a_declared_digest_is_verified_before_anything_changes(
        self, box: Box, root: Path
    ) -> None:
        def declared(data: bytes) -> dict[str, str]:
            digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
            return {"repr-digest": f"sha-256=:{digest}:"}

        assert box.put("/a", b"right", headers=declared(b"right")).status_code == 200
        wrong = box.put("/a", b"wrong", headers=declared(b"right"))
        assert wrong.status_code == 400
        assert wrong.headers["agent-sandbox-error"] == "E2005"
        assert box.get("/a").content == b"right"
        assert no_temporary_file(root)
        for malformed in ("sha-256=:AA==:", "md5=:AA==:", "x"):
            assert box.put("/a", b"", headers={"repr-digest": malformed}).status_code == 400

    def test_metadata_stays_with_the_file(self, box: Box) -> None:
        answer = box.put("/a", b"x", headers={"x-metadata-Colour": "dark blue"})
        assert answer.json()[0]["metadata"] == {"colour": "dark blue"}
        assert box.rpc("Stat", path="/a").json()["entry"]["metadata"] == {"colour": "dark blue"}
        (entry,) = [
            one for one in box.rpc("ListDir", path="/").json()["entries"] if one["name"] == "a"
        ]
        assert entry["metadata"] == {"colour": "dark blue"}


class TestForm:
    def post(self, box: Box, files: Any, path: str | None = None) -> httpx2.Response:
        params = {} if path is None else {"path": path}
        return box.http.post("/files", params=params, files=files, headers=box.headers)

    @pytest.mark.parametrize("size", SIZES)
    def test_what_goes_up_comes_down(self, box: Box, root: Path, size: int) -> None:
        data = content(size)
        assert self.post(box, {"file": ("other", data)}, "/tmp/a b").status_code == 200
        assert box.get("/tmp/a b").content == data
        assert no_temporary_file(root)

    def test_without_a_path_each_filename_is_one(self, box: Box) -> None:
        files = [
            ("file", (name, name.encode())) for name in ("/tmp/1", "rel/ü 2", "~/c:\\3", "/4%2f")
        ]
        answer = self.post(box, files)
        assert [one["path"] for one in answer.json()] == [
            "/tmp/1", "/home/user/rel/ü 2", "/home/user/c:\\3", "/4%2f",
        ]  # fmt: skip
        assert box.get("/4%2f").content == b"/4%2f"

    def test_other_fields_are_left_alone(self, box: Box) -> None:
        files = [("note", (None, "x" * 100)), ("file", ("/a", b"1")), ("end", (None, "y"))]
        assert [one["path"] for one in self.post(box, files).json()] == ["/a"]

    @pytest.mark.parametrize(
        "files",
        [
            [("other", ("/a", b"new"))],
            [("file", (None, "new"))],
            [("file", ("", b"new"))],
            [("file", ("/../a", b"new"))],
        ],
    )
    def test_a_form_without_a_file_is_refused(self, box: Box, root: Path, files: Any) -> None:
        box.put("/a", b"old")
        answer = self.post(box, files)
        assert answer.status_code == 400
        assert box.get("/a").content == b"old"
        assert no_temporary_file(root)

    def test_two_files_for_one_path_are_refused(self, box: Box, root: Path) -> None:
        answer = self.post(box, [("file", ("1", b"1")), ("file", ("2", b"2"))], "/a")
        assert answer.status_code == 400
        assert box.get("/a").status_code == 404
        assert no_temporary_file(root)

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            ("multipart/form-data", b""),
            ("multipart/form-data; boundary=", b""),
            ("multipart/form-data; boundary=" + "b" * 5_000, b""),
            ("multipart/form-data; boundary=b", b""),
            ("multipart/form-data; boundary=b", b"garbage"),
            ("multipart/form-data; boundary=b", b"--b--\r\n"),
            ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n"),
            (
                "multipart/form-data; boundary=b",
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="/a"\r\n\r\nnew',
            ),
            (
                "multipart/form-data; boundary=b",
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="/a"\r\n\r\nnew'
                b"\r\n--b",
            ),
            (
                "multipart/form-data; boundary=b",
                b'--b\r\nContent-Disposition: form-data; name="file\r\n\r\nnew\r\n--b--\r\n',
            ),
            (
                "multipart/form-data; boundary=b",
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="/\xff"\r\n\r\n'
                b"\r\n--b--\r\n",
            ),
            ("multipart/form-data; boundary=b", b"--b\r\n" + b"x" * 100_000),
        ],
    )
    def test_a_malformed_form_changes_nothing(
        self, box: Box, root: Path, content_type: str, body: bytes
    ) -> None:
        box.put("/a", b"old")
        headers = box.headers | {"content-type": content_type}
        answer = box.http.post("/files", content=body, headers=headers)
        assert answer.status_code == 400
        assert answer.headers["agent-sandbox-error"].startswith("E2")
        assert box.get("/a").content == b"old"
        assert no_temporary_file(root)


class TestReplacing:
    @pytest.mark.parametrize(
        ("mode", "kept"), [(0o644, 0o644), (0o600, 0o600), (0o755, 0o755), (0o6775, 0o775)]
    )
    def test_mode_bits_stay_without_setuid(
        self, box: Box, root: Path, mode: int, kept: int
    ) -> None:
        box.put("/a", b"old")
        (root / "a").chmod(mode)
        assert box.put("/a", b"new").status_code == 200
        assert stat.S_IMODE((root / "a").stat().st_mode) == kept

    def test_who_holds_a_lease_on_a_file_holds_no_write_up(self, box: Box, root: Path) -> None:
        box.put("/a", b"old")
        told = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            with (root / "a").open("r+b") as held:
                fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                # The kernel would let a writer wait for 45 s (fs.lease-break-time).
                assert box.put("/a", b"new", timeout=30).status_code == 200
                assert held.read() == b"old"
        finally:
            signal.signal(signal.SIGIO, told)
        assert box.get("/a").content == b"new"

    def test_a_file_that_another_holds_a_lease_on_is_a_conflict_until_it_is_given_up(
        self, box: Box, root: Path
    ) -> None:
        box.put("/a", b"leased")
        told = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            with (root / "a").open("r+b") as held:
                fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                answer = box.get("/a", timeout=30)
        finally:
            signal.signal(signal.SIGIO, told)
        assert (answer.status_code, answer.headers["agent-sandbox-error"]) == (409, "E4005")
        assert box.get("/a").content == b"leased"

    def test_a_new_file_is_readable_by_all_and_writable_by_its_owner(
        self, box: Box, root: Path
    ) -> None:
        box.put("/new/dir/a", b"")
        assert stat.S_IMODE((root / "new/dir/a").stat().st_mode) == 0o644
        assert stat.S_IMODE((root / "new/dir").stat().st_mode) == 0o755

    def test_a_reader_sees_the_old_content_or_the_new(self, box: Box) -> None:
        contents = {bytes([n]) * (3 * MIB) for n in range(4)}
        box.put("/a", next(iter(contents)))
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                for data in contents:
                    assert box.put("/a", data).status_code == 200

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(20):
                assert box.get("/a").content in contents
        finally:
            stop.set()
            writer.join(20)

    def test_an_open_file_keeps_its_old_content(self, box: Box, root: Path) -> None:
        box.put("/a", b"old")
        with (root / "a").open("rb") as old:
            box.put("/a", b"new")
            assert old.read() == b"old"

    def test_many_writers_leave_one_whole_file(self, box: Box, root: Path) -> None:
        contents = [bytes([n]) * 1_500_000 for n in range(8)]
        writers = [threading.Thread(target=box.put, args=("/a", data)) for data in contents]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(30)
        assert box.get("/a").content in contents
        assert no_temporary_file(root)


class TestGzip:
    TEXT = b"compressible " * 200_000

    @pytest.mark.parametrize(
        "asked", ["gzip", "GZIP", "gzip;q=0.5", "br, gzip", "*", "identity;q=0, gzip"]
    )
    def test_it_comes_when_asked_for(self, box: Box, asked: str) -> None:
        box.put("/a", self.TEXT)
        answer = box.get("/a", headers={"accept-encoding": asked})
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["vary"] == "accept-encoding"
        assert int(answer.headers.get("content-length", 0)) == 0
        assert answer.content == self.TEXT

    @pytest.mark.parametrize(
        "asked", ["", "identity", "br", "gzip;q=0", "gzip;q=x", "*;q=0", "gzip;q=0, *"]
    )
    def test_it_stays_away_when_not(self, box: Box, asked: str) -> None:
        box.put("/a", self.TEXT)
        answer = box.get("/a", headers={"accept-encoding": asked})
        assert "content-encoding" not in answer.headers
        assert answer.headers["content-length"] == str(len(self.TEXT))
        assert answer.content == self.TEXT

    def test_what_does_not_shrink_is_sent_as_it_is(self, box: Box) -> None:
        data = content(MIB)
        box.put("/a", data)
        answer = box.get("/a", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in answer.headers
        assert answer.content == data


def test_metadata_that_a_file_has_no_room_for_is_refused_as_an_argument(box: Box) -> None:
    box.put("/a", b"old")
    more = {f"x-metadata-{n}": "v" * 4_000 for n in range(12)}
    answer = box.put("/a", b"new", headers=more)
    if answer.status_code == 200:  # there is room on this file system
        assert box.get("/a").content == b"new"
    else:
        assert (answer.status_code, answer.headers["agent-sandbox-error"]) == (400, "E2001")
        assert box.get("/a").content == b"old"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT])
def test_too_much_metadata_is_told_apart_from_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "")

    monkeypatch.setattr(os, "setxattr", refuse)
    tree = Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    file = AtomicFile(tree, "/a", metadata={"k": "v"}, with_sha256=False)
    with pytest.raises(StorageFullError if code == errno.EDQUOT else ArgumentError):
        file.open()
    file.abort()
    assert os.listdir(tmp_path) == []
    tree.close()


def test_a_file_that_shrinks_midway_is_cut(box: Box, root: Path) -> None:
    box.put("/a", b"x" * (64 * MIB))
    with box.http.stream(
        "GET", "/files", params={"path": "/a"}, headers=box.headers | PLAIN
    ) as down:
        chunks = down.iter_raw(65_536)
        next(chunks)
        os.truncate(root / "a", MIB)
        with pytest.raises(httpx2.RemoteProtocolError):
            collections.deque(chunks, maxlen=0)


def test_of_a_file_that_grows_midway_the_declared_length_is_sent(box: Box, root: Path) -> None:
    size = 64 * MIB + 1
    box.put("/a", b"x" * size)
    with box.http.stream(
        "GET", "/files", params={"path": "/a"}, headers=box.headers | PLAIN
    ) as down:
        chunks = down.iter_raw(65_536)
        first = next(chunks)
        with (root / "a").open("ab") as file:
            file.write(b"y" * MIB)
        assert len(first) + sum(map(len, chunks)) == size
    assert box.get("/a").content[-1:] == b"y"


def test_a_gzip_answer_that_breaks_midway_has_no_valid_trailer(box: Box, root: Path) -> None:
    box.put("/a", b"x" * (64 * MIB))
    asked = box.headers | {"accept-encoding": "gzip"}
    unpacker = zlib.decompressobj(31)

    def unpack(chunks: Iterator[bytes]) -> None:
        for chunk in chunks:
            unpacker.decompress(chunk)

    with box.http.stream("GET", "/files", params={"path": "/a"}, headers=asked) as down:
        chunks = down.iter_raw()
        unpacker.decompress(next(chunks))
        os.truncate(root / "a", 0)
        with pytest.raises(httpx2.RemoteProtocolError):
            unpack(chunks)
    assert not unpacker.eof


def test_head_tells_the_length(box: Box) -> None:
    box.put("/a", b"12345")
    answer = box.http.head("/files", params={"path": "/a"}, headers=box.headers)
    assert answer.status_code == 200
    assert answer.headers["content-length"] == "5"
    assert answer.content == b""


def test_a_user_changes_nothing_but_must_exist(box: Box) -> None:
    for user, status in [("root", 200), ("user", 200), ("", 200), ("admin", 400)]:
        params = {"path": "who", "username": user}
        assert box.http.post("/files", params=params, headers=box.headers).status_code == status
    assert box.get("/home/user/who").status_code == 200


@pytest.mark.parametrize(
    "query", ["", "path=", "path=%ff", "path=/a&path=/b", "x&" * 40 + "path=/a"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_malformed_query_is_refused(box: Box, method: str, query: str) -> None:
    answer = box.http.request(method, f"/files?{query}", headers=box.headers)
    assert answer.status_code == 400
    assert answer.headers["agent-sandbox-error"].startswith("E2")


class TestSignedUrls:
    def signed(self, box: Box, text: str, **more: str) -> dict[str, str]:
        digest = hashlib.sha256(text.replace("TOKEN", box.token).encode()).digest()
        return {"signature": "v1_" + base64.b64encode(digest).rstrip(b"=").decode(), **more}

    def test_it_opens_its_path_for_its_operation(self, box: Box, express: Service) -> None:
        box.put("/a", b"old")
        read = self.signed(box, "/a:read::TOKEN", path="/a")
        write = self.signed(
            box, "/a:write:root:TOKEN:99999999999",
            path="/a", username="root", signature_expiration="99999999999",
        )  # fmt: skip
        assert express.http.get("/files", params=read).content == b"old"
        assert express.http.post("/files", params=write, content=b"new").status_code == 200
        assert express.http.get("/files", params=read).content == b"new"
        for fields in (write, read | {"path": "/b"}, read | {"username": "user"}):
            assert express.http.get("/files", params=fields).status_code == 401

    def test_it_expires(self, box: Box, express: Service) -> None:
        for expiry in ("1", "x", "-1", "\u0661", "9" * 17):
            fields = self.signed(
                box, f"/a:read::TOKEN:{expiry}", path="/a", signature_expiration=expiry
            )
            assert express.http.get("/files", params=fields).status_code == 401

    @pytest.mark.parametrize(
        "more", [{"path": "/" + "a" * 4_096}, {"path": "/a", "username": "x" * 9_000}]
    )
    def test_nothing_long_is_hashed_for_strangers(
        self, express: Service, more: dict[str, str]
    ) -> None:
        answer = express.http.get("/files", params=more | {"signature": "v1_x"})
        assert answer.status_code == 400

    @pytest.mark.parametrize("signature", ["", "v1_", "ü", "v1_" + "A" * 43])
    def test_a_wrong_one_is_401(self, express: Service, signature: str) -> None:
        fields = {"path": "/a", "signature": signature}
        assert express.http.get("/files", params=fields).status_code == 401
