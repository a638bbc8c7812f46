"""`agent-sandbox serve` for others: what it says, what it counts, how it is found, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.express import Box, Service, environment, log_lines, served, wait_until

from agent_sandbox.express import service as express_service
from agent_sandbox.express.address import greeting
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.metrics import Metrics
from agent_sandbox.wire import connect, process

KEY = "canary-key-of-the-operator"
DOMAIN = "sandboxes.example.com"
DRAIN_S = 60


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that is found under names of a domain, too."""
    with served(tmp_path_factory.mktemp("named"), "--domain", f"{DOMAIN}:8443") as service:
        yield service


def host_of(box: Box, port: int = 49983) -> dict[str, str]:
    return {"host": f"{port}-{box.sandbox_id}.{DOMAIN}"}


def measured(service: Service, **headers: str) -> dict[str, float]:
    """Return every sample of /metrics, by its name with its labels."""
    answer = service.http.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def start(box: Box, line: str, *, kill: bool = True) -> httpx2.Response:
    """Run a line of shell to its end, as a foreground command."""
    config = process.ProcessConfig(cmd="/bin/sh", args=["-c", line])
    message = process.StartRequest(process=config, stdin=False).to_json()
    headers = box.headers | {"content-type": connect.STREAM_TYPE}
    if kill:
        headers["agent-sandbox-on-disconnect"] = "kill"
    content = connect.encode_envelope(message)
    return box.http.post("/process.Process/Start", content=content, headers=headers)


# --- Names --------------------------------------------------------------------------------------


def test_a_sandbox_is_found_by_its_host_name(named: Service) -> None:
    box = named.create()
    token = {"x-access-token": box.token} | host_of(box)
    params = {"path": "/tmp/a"}
    raw = token | {"content-type": "application/octet-stream"}
    assert named.http.post("/files", params=params, content=b"1", headers=raw).status_code == 200
    assert named.http.get("/files", params=params, headers=token).content == b"1"
    assert box.get("/tmp/a").content == b"1", "the header leads to the same sandbox"
    assert named.http.get("/health", headers=host_of(box)).status_code == 204
    upper = {"host": f"49983-{box.sandbox_id}.{DOMAIN}:8443".upper()}
    assert named.http.get("/files", params=params, headers=token | upper).content == b"1"
    wrong = token | {"x-access-token": "wrong"}
    assert named.http.get("/files", params=params, headers=wrong).status_code == 401
    box.kill()
    gone = named.http.get("/files", params=params, headers=token)
    assert (gone.status_code, gone.headers["agent-sandbox-error"]) == (502, "E5001")


def test_callers_are_told_the_domain(named: Service) -> None:
    made = named.http.post("/v2/sandboxes", json={"templateID": "base"}).json()
    assert made["domain"] == f"{DOMAIN}:8443"
    again = named.http.post(f"/v2/sandboxes/{made['sandboxID']}/connect", json={"timeout": 1})
    assert again.json()["domain"] == f"{DOMAIN}:8443"
    detail = named.http.get(f"/sandboxes/{made['sandboxID']}").json()
    assert detail["domain"] == f"{DOMAIN}:8443"


def test_host_name_and_header_may_not_disagree(named: Service) -> None:
    one, other = named.create(), named.create()
    mixed = one.headers | host_of(other)
    answer = named.http.get("/files", params={"path": "/tmp/a"}, headers=mixed)
    assert (answer.status_code, answer.headers["agent-sandbox-error"]) == (400, "E2001")
    for box in (one, other):
        assert box.kill().status_code == 204


def test_a_signed_url_leads_to_no_other_sandbox_than_its_host_names(named: Service) -> None:
    import base64
    import hashlib

    one, other = named.create(), named.create()
    one.put("/tmp/a", b"of one")
    other.put("/tmp/a", b"of the other")
    digest = hashlib.sha256(f"/tmp/a:read::{one.token}".encode()).digest()
    signature = "v1_" + base64.b64encode(digest).rstrip(b"=").decode()
    params = {"path": "/tmp/a", "signature": signature}
    assert named.http.get("/files", params=params, headers=host_of(one)).content == b"of one"
    assert named.http.get("/files", params=params, headers=host_of(other)).status_code == 401


@pytest.mark.parametrize("by", ["host", "header"])
def test_another_port_of_a_sandbox_is_unsupported(named: Service, by: str) -> None:
    box = named.create()
    where = host_of(box, 3000) if by == "host" else {"e2b-sandbox-port": "3000"}
    answer = named.http.get("/files", params={"path": "/tmp/a"}, headers=box.headers | where)
    assert (answer.status_code, answer.headers["agent-sandbox-error"]) == (501, "E5006")
    assert named.http.get("/health", headers=box.headers | where).status_code == 501


@pytest.mark.parametrize("path", ["/v2/sandboxes", "/metrics", "/sandboxes/x"])
def test_the_name_of_a_sandbox_is_for_its_data_plane_alone(named: Service, path: str) -> None:
    box = named.create()
    assert named.http.get(path, headers=host_of(box)).status_code == 404
    assert named.http.get("/v2/sandboxes", headers={"host": f"api.{DOMAIN}"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"{DOMAIN}.evil.example", f"x{DOMAIN}", ""])
def test_a_name_outside_the_domain_is_refused(named: Service, host: str) -> None:
    assert named.http.get("/v2/sandboxes", headers={"host": host}).status_code == 401


# --- Metrics ------------------------------------------------------------------------------------


def test_metrics_count_what_happened_and_name_nobody(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    with served(tmp_path, "--api-key-file", str(keys), api_key=KEY) as service:
        box, other = service.create(metadata={"canary-name": "canary-value"}), service.create()
        box.put("/canary-path/a", b"x" * 1_000)
        assert box.get("/canary-path/a").content == b"x" * 1_000
        assert box.get("/canary-path/missing").status_code == 404
        assert start(box, "exit 3").status_code == 200
        start(box, "sleep 1000 & exit 0", kill=False)
        config = process.ProcessConfig(cmd="/no/such/program")
        message = connect.encode_envelope(process.StartRequest(process=config).to_json())
        lines = box.headers | {"content-type": connect.STREAM_TYPE}
        service.http.post("/process.Process/Start", content=message, headers=lines)
        service.http.get("/canary-route")
        other.kill()
        text = service.http.get("/metrics").text
        found = measured(service)
        files = "route=/files"
        assert found["agent_sandbox_sandboxes"] == 1
        assert found["agent_sandbox_sandboxes_created_total"] == 2
        assert found["agent_sandbox_sandboxes_ended_total{reason=killed}"] == 1
        assert found["agent_sandbox_commands_started_total"] == 2
        assert found[f"agent_sandbox_requests_total{{method=GET,{files},status=404}}"] == 1
        assert found["agent_sandbox_requests_total{method=GET,route=none,status=404}"] == 1
        assert found["agent_sandbox_errors_total{code=E4001}"] == 2, "one ended a stream"
        assert found[f"agent_sandbox_body_bytes_total{{direction=in,{files}}}"] == 1_000
        assert found[f"agent_sandbox_body_bytes_total{{direction=out,{files}}}"] > 1_000
        assert found[f"agent_sandbox_request_seconds_count{{method=GET,{files}}}"] == 2
        streams = "method=POST,route=/process.Process/Start"
        assert found[f"agent_sandbox_request_seconds_count{{{streams}}}"] == 3
        assert found["process_resident_memory_bytes"] > 0
        for secret in (box.sandbox_id[:8], other.sandbox_id[:8], box.token, KEY, "canary"):
            assert secret not in text


def test_metrics_need_a_key_where_there_are_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    with served(tmp_path, "--api-key-file", str(keys)) as service:
        assert service.http.get("/metrics").status_code == 401
        assert service.http.get("/metrics", headers={"x-api-key": "no"}).status_code == 401
        assert measured(service, **{"x-api-key": KEY})
        assert measured(service, authorization=f"Bearer {KEY}")
        basic = {"authorization": f"Basic {KEY}"}
        assert service.http.get("/metrics", headers=basic).status_code == 401
        bearer = {"authorization": f"Bearer {KEY}"}
        assert service.http.get("/v2/sandboxes", headers=bearer).status_code == 401


@pytest.mark.parametrize(
    ("caller", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("192.0.2.1", 401), ("2001:db8::1", 401), ("a name", 401)],
)
async def test_metrics_without_keys_are_for_this_machine_alone(
    tmp_path: Path, caller: str, status: int
) -> None:
    state = Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    inner = express_service.Service(state, keys=(), hosts=None, engine=Engine(None), meter=Metrics)
    transport = httpx2.ASGITransport(inner.app, client=(caller, 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://express") as http:
        assert (await http.get("/metrics")).status_code == status
        assert (await http.get("/v2/sandboxes")).status_code == 200
    await inner.close()


# --- What it says ---------------------------------------------------------------------------------


def test_the_first_line_tells_a_newcomer_what_runs_and_what_to_do(named: Service) -> None:
    first = log_lines(named.log())[0]["message"]
    assert first.startswith(
        f"Sandboxes at {named.url}, for this machine only, without API keys. Commands are isolated"
        " by bubblewrap, without network. Next: AGENT_SANDBOX_API_URL="
    )
    assert f"E2B_DOMAIN={DOMAIN}:8443" in first


@pytest.mark.parametrize(
    ("kind", "says"),
    [("none", "WITHOUT ISOLATION"), (None, "commands are refused"), ("bubblewrap", "network")],
)
def test_the_greeting_tells_the_isolation_that_is_in_force(kind: str | None, says: str) -> None:
    url = "http://0.0.0.0:1"
    line = greeting(url, loopback=False, keys=2, kind=kind, network=True, domain=None)
    assert says in line
    assert "for everybody who reaches this address, with 2 API keys." in line
    assert "AGENT_SANDBOX_API_URL=http://127.0.0.1:1 " in line, "an address that a caller can use"
    assert "\n" not in line


def test_text_logs_are_words_and_hold_no_more_than_json(tmp_path: Path) -> None:
    with served(tmp_path, "--log-format", "text") as service:
        box = service.create()
        box.put("/canary-path/a", b"canary-content")
        box.kill()
        assert service.end() == 0
        log = service.log()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ info "
    assert all(re.match(stamp, line) for line in log.splitlines())
    asked = rf"{stamp}request method=POST route=/files status=200 ms=[\d.]+ sandbox=\w{{8}}\n"
    assert re.search(asked, log)
    assert re.search(rf"{stamp}sandbox ended sandbox=\w{{8}} reason=killed\n", log)
    assert "canary" not in log
    assert box.sandbox_id not in log


# --- How it ends ----------------------------------------------------------------------------------


def running(service: Service) -> bool:
    return measured(service)["agent_sandbox_commands"] == 1


@pytest.mark.parametrize("to_the_group", [False, True], ids=["to-it", "to-its-group"])
def test_what_is_under_way_comes_to_its_end_before_the_service(
    tmp_path: Path, to_the_group: bool
) -> None:
    state = ("--state-dir", str(tmp_path / "state"), "--drain-seconds", str(DRAIN_S))
    command = [sys.executable, "-m", "agent_sandbox", "serve", "--port", "0", *state]
    serving = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    with serving, ThreadPoolExecutor() as threads:
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().decode().strip()
            options: dict[str, Any] = {"base_url": url, "trust_env": False, "timeout": 60}
            with httpx2.Client(**options) as http, httpx2.Client(**options) as kept:
                service = Service(serving, http, tmp_path, tmp_path)
                assert kept.get("/health").status_code == 204  # no new connection is taken later
                box = service.create()
                line = "while ! [ -e /tmp/go ]; do sleep 0.1; done; echo done"
                result = threads.submit(start, box, line)
                wait_until(lambda: running(service))
                (os.killpg if to_the_group else os.kill)(serving.pid, signal.SIGINT)
                wait_until(lambda: http.post("/v2/sandboxes", json={}).status_code == 503)
                box.http = kept
                answer = box.put("/tmp/go", b"")
                assert answer.headers["connection"] == "close"
                assert b"ZG9uZQo=" in result.result(30).content, "its output was lost"
            assert serving.wait(30) == 0
        finally:
            serving.kill()


@pytest.mark.parametrize("how", ["time", "second signal"])
def test_the_drain_is_bounded_by_time_and_by_a_second_signal(tmp_path: Path, how: str) -> None:
    seconds = "1" if how == "time" else str(DRAIN_S)
    with served(tmp_path, "--drain-seconds", seconds) as service, ThreadPoolExecutor() as threads:
        box = service.create()
        cut = threads.submit(start, box, "sleep 1000")
        wait_until(lambda: running(service))
        service.process.send_signal(signal.SIGTERM)
        if how == "second signal":
            wait_until(lambda: service.http.post("/v2/sandboxes", json={}).status_code == 503)
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        if how == "second signal":
            assert time.monotonic() - began < DRAIN_S / 2
        assert cut.exception(30) is not None or b"E5001" in cut.result(30).content
    assert [line["message"] for line in log_lines(service.log())][-1] == "ended"


def test_a_watch_does_not_hold_the_end_up(tmp_path: Path) -> None:
    with served(tmp_path, "--drain-seconds", str(DRAIN_S)) as service:
        box = service.create()
        message = connect.encode_envelope(b'{"path":"/tmp"}')
        lines = box.headers | {"content-type": connect.STREAM_TYPE}
        url = "/filesystem.Filesystem/WatchDir"
        with service.http.stream("POST", url, content=message, headers=lines) as stream:
            assert stream.status_code == 200
            ended = threading.Thread(target=service.end)
            ended.start()
            ended.join(30)
            assert not ended.is_alive()
