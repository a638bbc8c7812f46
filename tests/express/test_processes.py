"""What the public SDK does not ask for: without isolation, slow readers, leases, ends."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.commands import KILLS, rpc, run, shell, stream
from tests.support.express import Box, Service, child, served, settled, wait_until

from agent_sandbox.express.inotify import most_instances
from agent_sandbox.wire import headers
from agent_sandbox.wire.connect import encode_envelope


def test_nothing_of_the_service_is_in_a_command(box: Box) -> None:
    out, end = run(box, "env; ls /proc/self/fd; id -u; cat /proc/1/comm; ls /proc/*/comm | wc -l")
    assert end == {"exited": True, "status": "exit status 0"}
    text = out.decode()
    assert "AGENT_SANDBOX" not in text
    assert "\n1000\n" in text
    fds = text.split("LANG")[-1].split("\n1000\n")[0].split("\n")[-4:]
    assert set(fds) <= {"0", "1", "2", "3"}, "3 is the directory that ls reads"


def test_keepalives_come_when_nothing_else_does(box: Box) -> None:
    seen = []
    with stream(
        box, "Start", {"keepalive-ping-interval": "1"}, **shell("sleep 1.5; echo x")
    ) as said:
        seen = [next(iter(one["event"])) for one in said if "event" in one]
    assert seen == ["start", "keepalive", "data", "end"]


def test_the_end_of_a_connection_ends_the_stream_and_not_the_command(box: Box) -> None:
    with stream(box, "Start", **shell("sleep 1000")) as said:
        pid = next(said)["event"]["start"]["pid"]
    listed = rpc(box, "List").json()["processes"]
    assert [one["pid"] for one in listed] == [pid]
    with stream(box, "Start", KILLS, **shell("sleep 2000")) as said:
        next(said)
        assert len(rpc(box, "List").json()["processes"]) == 2
    wait_until(lambda: [one["pid"] for one in rpc(box, "List").json()["processes"]] == [pid])


def test_a_deadline_ends_the_command_even_when_nobody_watches(box: Box) -> None:
    with stream(box, "Start", {"connect-timeout-ms": "400"}, **shell("sleep 1000")) as said:
        next(said)
    wait_until(lambda: rpc(box, "List").json() == {})
    _, last = run(box, "sleep 1000", {"connect-timeout-ms": "200"})
    assert last["error"]["code"] == "deadline_exceeded"
    assert last["metadata"] == {"agent-sandbox-error": ["E5008"]}


def test_a_reader_that_takes_nothing_makes_the_command_wait(express: Service, box: Box) -> None:
    process = psutil.Process(express.process.pid)
    with stream(box, "Start", **shell("head -c 300M /dev/zero; touch /tmp/done")) as said:
        next(said)
        before = process.memory_info().rss
        other, _ = run(box, "echo others go on")
        assert other == b"others go on\n"
        assert box.get("/tmp/done").status_code == 404, "it did not wait"
        total = 0
        for one in said:
            data = one.get("event", {}).get("data", {}).get("stdout", "")
            total += len(data) * 3 // 4
        assert process.memory_info().rss - before < 32 * 2**20
    assert total >= 300 * 2**20
    assert box.get("/tmp/done").status_code == 200


IMPATIENT = textwrap.dedent("""
    import sys
    from agent_sandbox.express import __main__
    from agent_sandbox.express.processes import command
    command.STALL_S = 0.5
    sys.exit(__main__.main())
""")


def test_a_reader_that_takes_nothing_for_too_long_is_let_go(short_directory: Path) -> None:
    directory = short_directory / "i"
    directory.mkdir()
    with child(directory, command=(sys.executable, "-c", IMPATIENT)) as service:
        box = service.create()
        with stream(box, "Start", **shell("head -c 100M /dev/zero; touch /tmp/done")) as said:
            next(said)
            wait_until(lambda: box.get("/tmp/done").status_code == 200, 30)
            *rest, last = said
        assert last["error"]["code"] == "resource_exhausted"
        assert last["metadata"] == {"agent-sandbox-error": ["E5010"]}
        data = [one["event"]["data"]["stdout"] for one in rest if "data" in one["event"]]
        assert sum(map(len, data)) < 20 * 2**20, "what waited for the reader was given up"


def test_without_a_reader_output_is_counted_and_forgotten(express: Service, box: Box) -> None:
    process = psutil.Process(express.process.pid)
    with stream(box, "Start", **shell("head -c 1G /dev/zero; touch /tmp/done; sleep 9")) as said:
        pid = next(said)["event"]["start"]["pid"]
    before = process.memory_info().rss
    wait_until(lambda: box.get("/tmp/done").status_code == 200)
    assert process.memory_info().rss - before < 32 * 2**20

    def held() -> list[dict[str, Any]]:
        replay = {"agent-sandbox-replay": "only"}
        with stream(box, "Connect", replay, process={"pid": pid}) as said:
            return [one["event"]["data"] for one in said if "data" in one.get("event", {})]

    def whole() -> bool:
        head, tail = held()
        kept = len(base64.b64decode(head["stdout"])) + len(base64.b64decode(tail["stdout"]))
        assert kept == 262_144
        return int(tail["omittedBytes"]) + kept == 2**30

    wait_until(whole)


def test_a_foreground_command_outlives_the_life_of_its_sandbox(express: Service) -> None:
    box = express.create(timeout=1)
    out, end = run(box, "sleep 2; echo done", KILLS)
    assert (out, end.get("status")) == (b"done\n", "exit status 0")
    url = f"/sandboxes/{box.sandbox_id}"
    assert express.http.get(url).status_code == 200, "its caller may still renew it"
    wait_until(lambda: express.http.get(url).status_code == 404, 30)
    background = express.create(timeout=1)
    _, last = run(background, "sleep 1000")
    assert last["error"]["code"] == "unavailable"
    assert last["metadata"] == {"agent-sandbox-error": ["E5001"]}


def test_killing_the_sandbox_kills_what_left_its_session(express: Service) -> None:
    box = express.create()
    run(box, "setsid sleep 86321 & setsid sleep 86321 & true")
    left = _sleeping(express, "86321")
    assert len(left) == 2
    assert box.kill().status_code == 204
    wait_until(lambda: not [one for one in left if one.is_running()])


@pytest.mark.parametrize(
    ("name", "message", "status", "code"),
    [
        ("SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}, 404, "E5007"),
        ("SendSignal", {"process": {}, "signal": "SIGNAL_SIGKILL"}, 400, "E2001"),
        ("SendInput", {"process": {"tag": "none"}, "input": {"stdin": "eA=="}}, 404, "E5007"),
        ("SendInput", {"process": {"pid": 2}, "input": {"stdin": "%"}}, 400, "E2001"),
        ("CloseStdin", {"process": {"pid": 99_999}}, 404, "E5007"),
        ("Update", {"process": {"pid": -1}}, 400, "E2001"),
        ("List", {"unknown": 1}, 200, None),
        ("None", {}, 404, None),
    ],
)
def test_wrong_requests_have_their_answers(
    box: Box, name: str, message: dict[str, Any], status: int, code: str | None
) -> None:
    answer = rpc(box, name, **message)
    assert answer.status_code == status
    assert answer.headers.get("agent-sandbox-error") == code


def test_a_stream_of_input_reaches_the_command_it_names_and_no_other(box: Box) -> None:
    with stream(box, "Start", process={"cmd": "cat"}, tag="c") as said:
        next(said)
        to_it = [{"start": {"process": {"tag": "c"}}}, {"keepalive": {}}]
        data = [
            {"data": {"input": {"stdin": base64.b64encode(one).decode()}}} for one in (b"a", b"b")
        ]
        for messages, status in (([], 400), (data, 400), ([*to_it, *data], 200)):
            answer = box.http.post(
                "/process.Process/StreamInput",
                content=b"".join(encode_envelope(json.dumps(one).encode()) for one in messages),
                headers=box.headers | {"content-type": "application/connect+json"},
            )
            assert answer.status_code == status
        assert rpc(box, "CloseStdin", process={"tag": "c"}).status_code == 200
        assert (
            b"".join(
                base64.b64decode(one["event"]["data"]["stdout"])
                for one in said
                if "data" in one.get("event", {})
            )
            == b"ab"
        )


@pytest.mark.parametrize("value", ["9" * 5_000, "9" * 13, "x", "-1", "1.5", ""])
@pytest.mark.parametrize(
    "name",
    [
        headers.CONNECT_TIMEOUT_MS,
        headers.KEEPALIVE_PING_INTERVAL,
        headers.OUTPUT_LIMIT,
        headers.RETAIN,
    ],
)
def test_a_number_that_is_none_is_refused(box: Box, name: str, value: str) -> None:
    _, last = run(box, "true", {name: value})
    assert last["error"]["code"] == "invalid_argument"


def test_the_input_of_a_terminal_is_not_closed(box: Box) -> None:
    message = {"process": {"cmd": "cat"}, "pty": {"size": {"rows": 9, "cols": 9}}, "tag": "t"}
    with stream(box, "Start", KILLS, **message) as said:
        next(said)
        refused = rpc(box, "CloseStdin", process={"tag": "t"})
        assert refused.headers["agent-sandbox-error"] == "E5011"
        given = {"pty": base64.b64encode(b"x\n").decode()}
        assert rpc(box, "SendInput", process={"tag": "t"}, input=given).status_code == 200
        assert "pty" in next(said)["event"]["data"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"process": {"cmd": ""}}, "E2001"),
        ({}, "E2001"),
        ({"process": {"cmd": "/none"}}, "E4001"),
        ({"process": {"cmd": "true", "cwd": "/none"}}, "E4001"),
        ({"process": {"cmd": "true", "cwd": "/../x"}}, "E2002"),
        ({"process": {"cmd": "/etc/passwd"}}, "E4002"),
        ({"process": {"cmd": "true", "args": ["\0"]}}, "E2001"),
        ({"process": {"cmd": "true", "envs": {"a=b": "c"}}}, "E2001"),
    ],
)
def test_what_cannot_start_is_refused(box: Box, message: dict[str, Any], code: str) -> None:
    with stream(box, "Start", **message) as said:
        (last,) = said
    assert last["metadata"] == {"agent-sandbox-error": [code]}
    assert rpc(box, "List").json() == {}


WITHOUT = textwrap.dedent("""
    import sys
    from agent_sandbox.express import engine, __main__
    engine.find_bubblewrap = lambda: None
    sys.exit(__main__.main())
""")


def test_without_bubblewrap_files_work_and_commands_are_unsupported(short_directory: Path) -> None:
    directory = short_directory / "w"
    directory.mkdir()
    with child(directory, command=(sys.executable, "-c", WITHOUT)) as service:
        box = service.create()
        assert box.put("/tmp/a", b"x").status_code == 200
        assert box.get("/tmp/a").content == b"x"
        answer = rpc(box, "List")
        assert (answer.status_code, answer.headers["agent-sandbox-error"]) == (501, "E5006")
        with stream(box, "Start", **shell("true")) as said:
            (last,) = said
        assert last["error"]["code"] == "unimplemented"


def test_isolation_that_was_demanded_is_not_done_without(short_directory: Path) -> None:
    directory = short_directory / "d"
    directory.mkdir()
    command = (sys.executable, "-c", WITHOUT)
    with child(directory, command=command, arguments=["--isolation=bubblewrap"]) as service:
        assert service.process.wait(20) == 2
        assert "no bubblewrap" in service.log()


def test_no_isolation_is_had_by_asking_for_it(tmp_path: Path) -> None:
    with served(tmp_path, "--isolation", "none") as service:
        box = service.create()
        box.put("/tmp/a", b"from the files")
        out, _ = run(box, "cat ../../tmp/a; pwd; id -u")
        assert out.startswith(b"from the files/")
        assert b"/root/home/user\n" in out
        _, end = run(box, "sleep 86322 & exit 3")
        assert end["exitCode"] == 3
        (left,) = _sleeping(service, "86322")
        box.kill()
        wait_until(lambda: not left.is_running())


def test_the_network_is_the_operators_to_give(tmp_path: Path, box: Box) -> None:
    count = "grep -c : /proc/net/dev"
    alone, _ = run(box, count)
    assert alone == b"1\n", "only the loopback of its own"
    own = len(psutil.net_if_addrs())
    with served(tmp_path, "--allow-network") as service:
        assert run(service.create(), count)[0] == f"{own}\n".encode()
        assert run(service.create(allow_internet_access=False), count)[0] == b"1\n"


def test_the_death_of_the_service_is_that_of_every_process_of_its_sandboxes(
    short_directory: Path,
) -> None:
    directory = short_directory / "k"
    directory.mkdir()
    with child(directory) as service:
        boxes = [service.create() for _ in range(3)]
        for box in boxes:
            run(box, "setsid sleep 86323 & (trap '' TERM HUP INT; exec setsid sleep 86323) & true")
        assert len(_sleeping(service, "86323")) == 2 * len(boxes)
        below = psutil.Process(service.process.pid).children(recursive=True)
        assert len({one.name() for one in below}) >= 3, "helpers, bubblewrap and commands"
        service.process.kill()
        service.process.wait(10)
        # Handles of psutil know the time of birth: a number given away again is another process.
        wait_until(lambda: not [one for one in below if one.is_running()])


def _sleeping(service: Service, number: str) -> list[psutil.Process]:
    """Return who sleeps for so long below this very service, and not somewhere on the machine."""
    found = []
    for one in psutil.Process(service.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.cmdline() == ["sleep", number]:
                found.append(one)
    return found


GRAB = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while libc.inotify_init1(0) >= 0:
    count += 1
print(count, flush=True)
input()
"""


def test_one_sandbox_cannot_take_the_watches_of_the_others(express: Service, box: Box) -> None:
    box.put("/tmp/grab.py", GRAB.encode())
    message = {"process": {"cmd": "python3", "args": ["/tmp/grab.py"]}}
    with stream(box, "Start", KILLS, **message) as said:
        next(said)
        taken = int(base64.b64decode(next(said)["event"]["data"]["stdout"]))
        assert 1 <= taken <= most_instances() // 8
        other = express.create()
        assert other.rpc("CreateWatcher", path="/tmp").status_code == 200
        other.kill()


def test_descriptors_come_back(express: Service, box: Box) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{express.process.pid}/fd"))

    for _ in range(20):  # what is remembered of ended commands is filled once
        run(box, "echo x")
    before = settled(count)
    for _ in range(30):
        run(box, "echo x; sleep 0 & exit 1")
    wait_until(lambda: count() <= before + 2)
