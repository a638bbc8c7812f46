"""The control plane: lives, filters, keys, and what a kill leaves behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.express import Box, Service, environment, raw_socket, served, wait_until

from agent_sandbox.express.upload import BATCH_BYTES

KEYS = ("first-key", "second-key")


def end_of(service: Service, box: Box) -> float:
    answer = service.http.get(f"/sandboxes/{box.sandbox_id}")
    return datetime.fromisoformat(answer.json()["endAt"]).timestamp()


def test_a_sandbox_is_created_described_and_killed(express: Service) -> None:
    answer = express.http.post("/v2/sandboxes", json={"templateID": "t", "metadata": {"a": "b"}})
    assert answer.status_code == 201
    created = answer.json()
    assert created["templateID"] == "t"
    assert created["envdVersion"] == "0.6.4"
    detail = express.http.get(f"/sandboxes/{created['sandboxID']}").json()
    assert detail["metadata"] == {"a": "b"}
    assert detail["state"] == "running"
    assert "envdAccessToken" not in detail
    life = datetime.fromisoformat(detail["endAt"]) - datetime.fromisoformat(detail["startedAt"])
    assert 299 <= life.total_seconds() <= 301
    box = Box(express.http, created["sandboxID"], created["envdAccessToken"])
    root = express.root_of(box)
    assert box.put("/a", b"x").status_code == 200
    assert box.kill().status_code == 204
    assert not root.parent.exists()
    assert box.kill().status_code == 404
    assert box.kill().headers["agent-sandbox-error"] == "E5001"


def test_an_id_has_160_random_bits_and_fits_into_a_host_name(express: Service) -> None:
    ids = {express.create().sandbox_id for _ in range(8)}
    assert len(ids) == 8
    for sandbox_id in ids:
        assert re.fullmatch("i[a-z2-7]{32}", sandbox_id)
        assert len(f"49983-{sandbox_id}") <= 63


@pytest.mark.parametrize("timeout", [0, -1, True, False, 1.5, 1.0, "60", 86_401, 2**70])
@pytest.mark.parametrize("call", ["create", "connect", "timeout"])
def test_a_life_out_of_range_is_refused(
    express: Service, box: Box, call: str, timeout: Any
) -> None:
    before = end_of(express, box)
    url = {
        "create": "/v2/sandboxes",
        "connect": f"/v2/sandboxes/{box.sandbox_id}/connect",
        "timeout": f"/sandboxes/{box.sandbox_id}/timeout",
    }[call]
    answer = express.http.post(url, json={"templateID": "base", "timeout": timeout})
    assert answer.status_code == 400
    assert answer.headers["agent-sandbox-error"] == "E2001"
    assert end_of(express, box) == before


@pytest.mark.parametrize("timeout", [1, 86_400])
def test_a_life_at_the_edge_is_accepted(express: Service, timeout: int) -> None:
    assert express.create(timeout).kill().status_code in (204, 404)


def test_connecting_prolongs_and_never_shortens(express: Service, box: Box) -> None:
    connect = f"/v2/sandboxes/{box.sandbox_id}/connect"
    before = end_of(express, box)
    answer = express.http.post(connect, json={"timeout": 5})
    assert answer.json()["envdAccessToken"] == box.token
    assert end_of(express, box) == before
    express.http.post(connect, json={"timeout": 900})
    assert end_of(express, box) > before + 500


def test_setting_the_timeout_prolongs_and_shortens(express: Service, box: Box) -> None:
    before = end_of(express, box)
    url = f"/sandboxes/{box.sandbox_id}/timeout"
    assert express.http.post(url, json={"timeout": 900}).status_code == 204
    assert end_of(express, box) > before + 500
    assert express.http.post(url, json={"timeout": 30}).status_code == 204
    assert end_of(express, box) < before


def test_a_sandbox_ends_with_its_life(express: Service) -> None:
    box = express.create(1)
    root = express.root_of(box)
    assert box.put("/tmp/a/b", b"x").status_code == 200
    wait_until(lambda: not root.parent.exists())
    answer = box.get("/tmp/a/b")
    assert answer.status_code == 502
    assert answer.headers["agent-sandbox-error"] == "E5001"
    wait_until(lambda: box.kill().status_code == 404)  # 204 until the end is over
    connect = express.http.post(f"/v2/sandboxes/{box.sandbox_id}/connect", json={"timeout": 5})
    assert connect.status_code == 404


def half_an_upload(service: Service, box: Box, path: str, size: int = 2) -> socket.socket:
    """Begin an upload of `size` bytes and send one."""
    peer = raw_socket(service)
    lines = [f"POST /files?path={path} HTTP/1.1", "host: localhost", f"content-length: {size}"]
    lines += [f"{name}: {value}" for name, value in box.headers.items()]
    peer.sendall("\r\n".join([*lines, "", "1"]).encode())
    return peer


def wait_for_overtime(service: Service, box: Box) -> None:
    """Wait until the sandbox's time is up and it lives only because something holds it."""

    def end() -> str:
        answer = service.http.get(f"/sandboxes/{box.sandbox_id}")
        assert answer.status_code == 200
        return str(answer.json()["endAt"])

    first = end()
    wait_until(lambda: end() > first)


def test_a_running_upload_holds_its_sandbox(express: Service) -> None:
    box = express.create(1)
    root = express.root_of(box)
    with half_an_upload(express, box, "/tmp/a") as peer:
        wait_for_overtime(express, box)
        assert box.get("/tmp/none").status_code == 404, "it lives as before"
        peer.sendall(b"2")
        assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: not root.parent.exists(), 30)
    assert box.get("/tmp/a").status_code == 502


def test_a_renewal_after_a_transfer_that_held_the_sandbox_counts(express: Service) -> None:
    box = express.create(1)
    with half_an_upload(express, box, "/tmp/a") as peer:
        wait_for_overtime(express, box)
        peer.sendall(b"2")
        assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")
    connect = f"/v2/sandboxes/{box.sandbox_id}/connect"
    assert express.http.post(connect, json={"timeout": 300}).status_code == 200
    assert box.get("/tmp/a").content == b"12"
    box.kill()


def test_a_kill_reaches_a_sandbox_whose_time_is_up(express: Service) -> None:
    box = express.create(1)
    root = express.root_of(box)
    with half_an_upload(express, box, "/tmp/a") as peer:
        wait_for_overtime(express, box)
        assert box.kill().status_code == 204
        assert peer.recv(65_536).startswith(b"HTTP/1.1 502 ")
        assert not root.parent.exists()
    assert box.kill().status_code == 404


def test_a_service_ends_though_a_transfer_holds_a_sandbox(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        box = service.create(1)
        with half_an_upload(service, box, "/tmp/a"):
            wait_for_overtime(service, box)
            assert service.end() == 0


def test_the_death_of_the_service_in_mid_write_leaves_the_old_content(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        box = service.create()
        box.put("/tmp/a", b"old")
        root = service.root_of(box)
        size = 3 * BATCH_BYTES
        with half_an_upload(service, box, "/tmp/a", size) as peer:
            peer.sendall(bytes(2 * BATCH_BYTES))
            wait_until(lambda: list((root / "tmp").glob(".~agent-sandbox.r.*")))
            service.process.kill()
            service.process.wait(10)
        assert (root / "tmp/a").read_bytes() == b"old"


def test_a_kill_ends_a_running_upload_with_one_answer(express: Service) -> None:
    box = express.create()
    root = express.root_of(box)
    with half_an_upload(express, box, "/tmp/a") as peer:
        assert box.get("/tmp/none").status_code == 404  # the upload before it has begun as well
        assert box.kill().status_code == 204
        answer = peer.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"agent-sandbox-error: E5001" in answer
        assert answer.count(b"HTTP/1.1") == 1
    assert not root.parent.exists()


def test_lists_are_filtered_ordered_and_paged(express: Service) -> None:
    boxes = [express.create(metadata={"list": "x & y", "n": str(n)}) for n in range(3)]

    def ids(**params: str) -> list[str]:
        answer = express.http.get("/v2/sandboxes", params=params)
        assert answer.status_code == 200
        return [one["sandboxID"] for one in answer.json()]

    newest_first = [box.sandbox_id for box in reversed(boxes)]
    wanted = "list=x+%2526+y"
    assert ids(metadata=wanted) == newest_first
    assert ids(metadata=wanted, order="asc") == newest_first[::-1]
    assert ids(metadata="list=x+%26+y&n=1") == [boxes[1].sandbox_id]
    assert ids(metadata="list=other") == []
    assert ids(metadata=wanted, state="paused") == []
    assert ids(metadata=wanted, state="paused,running") == newest_first
    assert ids(metadata=wanted, startedAfter=datetime.now(UTC).isoformat()) == []
    assert ids(metadata=wanted, template="other") == []
    first = express.http.get("/v2/sandboxes", params={"metadata": wanted, "limit": "2"})
    token = first.headers["x-next-token"]
    assert [one["sandboxID"] for one in first.json()] == newest_first[:2]
    second = express.http.get("/v2/sandboxes", params={"metadata": wanted, "nextToken": token})
    assert [one["sandboxID"] for one in second.json()] == newest_first[2:]
    assert "x-next-token" not in second.headers
    for box in boxes:
        box.kill()


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("0001-01-01", True),
        ("0001-01-01T00:00:00+23:59", True),
        ("2020-02-03T04:05:06", True),
        ("9999-12-31T23:59:59-23:59", False),
    ],
)
def test_any_date_is_a_filter(express: Service, box: Box, after: str, found: bool) -> None:
    answer = express.http.get("/v2/sandboxes", params={"startedAfter": after})
    assert answer.status_code == 200
    assert (box.sandbox_id in answer.text) is found


@pytest.mark.parametrize(
    "query", ["limit=x", "limit=-1", "nextToken=1.5", "startedAfter=then", "limit=1&limit=2"]
)
def test_a_malformed_filter_is_refused(express: Service, query: str) -> None:
    assert express.http.get(f"/v2/sandboxes?{query}").status_code == 400


def test_what_a_sandbox_cannot_do_is_said(express: Service, box: Box) -> None:
    paused = express.http.post(f"/sandboxes/{box.sandbox_id}/pause", json={})
    assert paused.status_code == 501
    assert paused.headers["agent-sandbox-error"] == "E5006"
    wish = {"templateID": "base", "autoPause": True}
    assert express.http.post("/v2/sandboxes", json=wish).status_code == 501
    assert express.http.get(f"/sandboxes/{box.sandbox_id}/metrics").json() == []


def test_unversioned_routes_of_older_clients_work(express: Service) -> None:
    created = express.http.post("/sandboxes", json={"templateID": "base"})
    assert created.status_code == 201
    sandbox_id = created.json()["sandboxID"]
    assert express.http.post(f"/sandboxes/{sandbox_id}/connect", json={}).status_code == 200
    assert sandbox_id in express.http.get("/sandboxes").text
    assert express.http.delete(f"/sandboxes/{sandbox_id}").status_code == 204


class TestTokens:
    @pytest.mark.parametrize(
        "token", [None, b"", b"wrong", "\u00fc".encode(), b"\xff\xfe", b"x" * 60_000]
    )
    @pytest.mark.parametrize("url", ["/files?path=/a", "/filesystem.Filesystem/Stat"])
    def test_a_wrong_token_is_401(
        self, express: Service, box: Box, url: str, token: bytes | None
    ) -> None:
        headers = [(b"e2b-sandbox-id", box.sandbox_id.encode())]
        headers += [] if token is None else [(b"x-access-token", token)]
        headers += [(b"content-type", b"application/json")]
        method = "GET" if "files?" in url else "POST"
        answer = express.http.request(method, url, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["agent-sandbox-error"] == "E5005"
        assert "wrong" not in answer.text

    def test_one_sandboxs_token_does_not_open_another(self, express: Service, box: Box) -> None:
        other = express.create()
        assert box.put("/a", headers={"x-access-token": other.token}).status_code == 401
        other.kill()

    def test_a_request_must_name_one_sandbox(self, express: Service, box: Box) -> None:
        token = {"x-access-token": box.token}
        assert express.http.get("/files?path=/a", headers=token).status_code == 400
        unknown = express.http.get("/files?path=/a", headers=token | {"e2b-sandbox-id": "i"})
        assert unknown.status_code == 502
        assert "was not found" in unknown.json()["message"]
        twice = [(b"e2b-sandbox-id", box.sandbox_id.encode())] * 2
        assert express.http.get("/files?path=/a", headers=twice).status_code == 400

    def test_health_tells_the_service_and_the_sandbox(self, express: Service, box: Box) -> None:
        assert express.http.get("/health").status_code == 204
        assert express.http.get("/health", headers=box.headers).status_code == 204
        box.kill()
        assert express.http.get("/health", headers=box.headers).status_code == 502


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("keyed")
    file = directory / "keys"
    file.write_text(f"# the keys\n{KEYS[0]}\n\n  {KEYS[1]}\n")
    with served(directory, "--api-key-file", str(file), api_key=KEYS[0]) as service:
        yield service


class TestKeys:
    @pytest.mark.parametrize(
        "key", [b"", b"wrong", b"\xff", b"# the keys", b"first-key second-key"]
    )
    def test_a_wrong_key_is_401_everywhere(self, keyed: Service, key: bytes) -> None:
        box = keyed.create()
        one = f"/sandboxes/{box.sandbox_id}"
        for method, url in [
            ("POST", "/v2/sandboxes"), ("GET", "/v2/sandboxes"), ("GET", one), ("DELETE", one),
            ("POST", f"/v2{one}/connect"), ("POST", f"{one}/timeout"), ("POST", f"{one}/pause"),
            ("GET", f"{one}/metrics"),
        ]:  # fmt: skip
            answer = keyed.http.request(method, url, headers=[(b"x-api-key", key)])
            assert answer.status_code == 401
            assert answer.headers["agent-sandbox-error"] == "E5005"

    def test_a_key_sees_only_its_own_sandboxes(self, keyed: Service) -> None:
        box = keyed.create()
        other = {"x-api-key": KEYS[1]}
        one = f"/sandboxes/{box.sandbox_id}"
        assert box.sandbox_id not in keyed.http.get("/v2/sandboxes", headers=other).text
        assert box.sandbox_id in keyed.http.get("/v2/sandboxes").text
        assert keyed.http.get(one, headers=other).status_code == 404
        assert keyed.http.delete(one, headers=other).status_code == 404
        assert keyed.http.delete(one).status_code == 204

    def test_the_data_plane_needs_no_key(self, keyed: Service) -> None:
        box = keyed.create()
        assert httpx2.get(f"{keyed.url}/files?path=/etc/group", headers=box.headers).is_success


class TestBinding:
    def serve(self, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        code = (
            "import sys; from pathlib import Path;"
            "from agent_sandbox.errors import ConfigError;"
            "from agent_sandbox.express.server import ServeConfig, serve_tcp\n"
            "try: serve_tcp(ServeConfig(port=0, state_dir=Path(sys.argv[1]), host=sys.argv[2],"
            " api_key_file=Path(sys.argv[3]) if sys.argv[3:] else None))\n"
            "except ConfigError as error: sys.exit(error.reason)"
        )
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "state"), *arguments],
            capture_output=True,
            env=environment(),
            timeout=30,
        )

    @pytest.mark.parametrize("host", ["0.0.0.0", "::"])
    def test_an_open_address_without_keys_is_refused(self, tmp_path: Path, host: str) -> None:
        ended = self.serve(tmp_path, host)
        assert ended.returncode == 1
        assert b"open to others" in ended.stderr
        assert ended.stdout == b""

    @pytest.mark.parametrize("content", [None, "", "# none\n\n", "\udcff"])
    def test_a_key_file_without_keys_is_refused(self, tmp_path: Path, content: str | None) -> None:
        file = tmp_path / "keys"
        if content is not None:
            file.write_bytes(os.fsencode(content))
        ended = self.serve(tmp_path, "127.0.0.1", str(file))
        assert ended.returncode == 1
        assert b"API keys" in ended.stderr

    def test_a_web_page_cannot_use_a_service_without_keys(self, tcp: Service) -> None:
        rebound = tcp.http.get("/v2/sandboxes", headers={"host": "attacker.example"})
        foreign = tcp.http.get("/v2/sandboxes", headers={"origin": "https://attacker.example"})
        assert rebound.status_code == foreign.status_code == 401
        local = tcp.http.get("/v2/sandboxes", headers={"host": "localhost:1"})
        assert local.status_code == 200
