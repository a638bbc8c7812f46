"""Retained commands: what they keep alive, for how long, and what ends it all the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.commands import rpc, shell, stream
from tests.support.express import Box, Child, Service, child, wait_until

RELEASE = {"agent-sandbox-unless-retained": "1"}
CLAIM = {"agent-sandbox-claim": "1"}


@pytest.fixture
def service(short_directory: Path) -> Iterator[Child]:
    with child(short_directory) as running:
        yield running


def retain(box: Box, line: str, seconds: str = "600") -> int:
    """Start a retained command and return its number."""
    with stream(box, "Start", {"agent-sandbox-retain": seconds}, **shell(line)) as said:
        start = next(said)["event"]["start"]
    assert start["retained"] is True
    return int(start["pid"])


def alive(service: Service) -> set[str]:
    return {one["sandboxID"] for one in service.http.get("/v2/sandboxes").json()}


def release(service: Service, box: Box) -> None:
    answer = service.http.delete(f"/sandboxes/{box.sandbox_id}", headers=RELEASE)
    assert answer.status_code == 204


def finish(box: Box) -> None:
    """Let the command that waits for it end."""
    assert box.put("/tmp/go").status_code == 200


WAITS = "until [ -e /tmp/go ]; do sleep 0.05; done"


def test_a_release_ends_a_sandbox_at_once_unless_a_retained_command_runs(service: Child) -> None:
    kept, plain = service.create(), service.create()
    retain(kept, WAITS)
    with stream(plain, "Start", **shell("sleep 1000")) as said:
        assert "retained" not in next(said)["event"]["start"]
    release(service, kept)
    release(service, plain)
    assert alive(service) == {kept.sandbox_id}
    finish(kept)
    wait_until(lambda: not alive(service))
    wait_until(lambda: not list(service.state_dir.glob(f"instances/*/{kept.sandbox_id}")))


def test_the_end_of_a_retained_command_ends_nothing_that_was_not_released(service: Child) -> None:
    box = service.create()
    retain(box, "true")
    wait_until(lambda: rpc(box, "List").json() == {})
    assert alive(service) == {box.sandbox_id}
    release(service, box)
    assert alive(service) == set()


def test_the_last_retained_command_counts(service: Child) -> None:
    box = service.create()
    first = retain(box, "sleep 1000")
    retain(box, WAITS)
    release(service, box)
    rpc(box, "SendSignal", process={"pid": first}, signal="SIGNAL_SIGKILL")
    wait_until(lambda: len(rpc(box, "List").json()["processes"]) == 1)
    assert alive(service) == {box.sandbox_id}
    finish(box)
    wait_until(lambda: not alive(service))


def test_who_claims_a_released_sandbox_keeps_it_after_the_command(service: Child) -> None:
    claimed, renewed = service.create(), service.create()
    for box, lines in ((claimed, CLAIM), (renewed, {})):
        retain(box, WAITS)
        release(service, box)
        url = f"/v2/sandboxes/{box.sandbox_id}/connect"
        assert service.http.post(url, json={"timeout": 60}, headers=lines).is_success
        finish(box)
    wait_until(lambda: alive(service) == {claimed.sandbox_id})
    assert claimed.get("/tmp/go").status_code == 200


def test_retaining_prolongs_a_life_and_its_end_is_the_end(service: Child) -> None:
    box = service.create(timeout=1)
    retain(box, "sleep 1000", "2")
    release(service, box)
    wait_until(lambda: not alive(service))
    longer = service.create(timeout=600)
    end_at = service.http.get(f"/sandboxes/{longer.sandbox_id}").json()["endAt"]
    retain(longer, "sleep 1000", "5")
    assert service.http.get(f"/sandboxes/{longer.sandbox_id}").json()["endAt"] == end_at


def test_a_kill_wins(service: Child) -> None:
    box = service.create()
    retain(box, "sleep 1000")
    release(service, box)
    assert box.kill().status_code == 204
    assert alive(service) == set()


@pytest.mark.parametrize("seconds", ["0", "86401", "-1", "x", "9" * 20])
def test_a_time_out_of_range_is_refused_and_nothing_runs(service: Child, seconds: str) -> None:
    box = service.create()
    with stream(box, "Start", {"agent-sandbox-retain": seconds}, **shell("sleep 1")) as said:
        (last,) = said
    assert last["metadata"] == {"agent-sandbox-error": ["E2001"]}
    assert rpc(box, "List").json() == {}


def test_the_service_outlives_its_parent_until_the_last_retained_command(service: Child) -> None:
    kept = service.create()
    service.create()
    retain(kept, WAITS)
    service.cut_lifeline()
    wait_until(lambda: alive(service) == {kept.sandbox_id})
    answer = service.http.post("/v2/sandboxes", json={"templateID": "base"})
    assert answer.status_code == 503, "it makes no more sandboxes"
    finish(kept)
    assert service.process.wait(15) == 0
    assert not list(service.state_dir.glob("instances/*"))
    assert service.log() == ""


def test_a_service_that_outlives_its_parent_ends_by_signal_with_everything(service: Child) -> None:
    box = service.create()
    retain(box, "sleep 1000")
    below = psutil.Process(service.process.pid).children(recursive=True)
    service.cut_lifeline()
    assert alive(service) == {box.sandbox_id}
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(15) == 0
    assert not psutil.wait_procs(below, 10)[1]


def test_tagged_commands_are_remembered_however_many_others_come_and_go(service: Child) -> None:
    box = service.create()
    with stream(box, "Start", tag="mine", **shell("echo kept; exit 3")) as said:
        assert list(said)
    for _ in range(20):
        with stream(box, "Start", **shell("true")) as said:
            assert list(said)
    ended = rpc(box, "List", {"agent-sandbox-ended": "1"}).json()["processes"]
    assert [one["exitCode"] for one in ended if one.get("tag") == "mine"] == [3]
    assert len(ended) == 17
    replay = {"agent-sandbox-replay": "only"}
    with stream(box, "Connect", replay, process={"tag": "mine"}) as said:
        assert "a2VwdAo=" in str(list(said))
