"""What people type, and what they get: files both ways, commands, lists, the doctor."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import WAIT_S, Shell
from tests.support.bad_peer import SANDBOX_ID, BadPeer, Talk, answer
from tests.support.express import wait_until

from agent_sandbox.client.local_files import SPILL_BYTES


def test_a_file_goes_in_and_comes_out_again_byte_for_byte(shared: Shell, box: str) -> None:
    data = os.urandom(3_000_001)
    (shared.files / "data.bin").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    told = {"path": "/home/user/data.bin", "bytes": len(data), "sha256": digest}
    assert json.loads(shared.says("cp", "--json", "data.bin", f"{box}:")) == told
    assert json.loads(shared.says("cp", "--json", f"{box}:data.bin", "back.bin")) == {
        **told,
        "path": "back.bin",
    }
    assert (shared.files / "back.bin").read_bytes() == data
    assert shared.says("cp", f"{box}:data.bin", str(shared.files / "back.bin")) == ""


@pytest.mark.parametrize(
    ("target", "lands"),
    [
        (":", "/home/user/name"),
        (":/tmp", "/tmp/name"),
        (":/tmp/", "/tmp/name"),
        (":other", "/home/user/other"),
        (":/tmp/new/deep/other", "/tmp/new/deep/other"),
        (":/tmp/new/made/", "/tmp/new/made/name"),
    ],
)
def test_a_directory_as_target_keeps_the_name(
    shared: Shell, box: str, target: str, lands: str
) -> None:
    (shared.files / "name").write_text(target)
    shared.says("cp", "name", box + target)
    assert shared.says("cp", f"{box}:{lands}", "-") == target
    shared.says("run", box, "--", "rm", "-r", lands)


def test_a_local_directory_as_target_keeps_the_name_and_an_old_file_its_mode(
    shared: Shell, box: str
) -> None:
    shared.says("cp", "-", f"{box}:kept", stdin=b"new")
    (shared.files / "there").mkdir()
    old = shared.files / "there" / "kept"
    old.write_text("old")
    old.chmod(0o600)
    shared.says("cp", f"{box}:kept", "there")
    assert old.read_text() == "new"
    assert old.stat().st_mode & 0o777 == 0o600


def test_a_copy_that_breaks_leaves_the_old_file_and_no_other(shared: Shell, box: str) -> None:
    place = shared.files / "place"
    place.mkdir()
    (place / "old").write_text("old")
    shared.says("run", box, "--", "mkfifo", "/tmp/fifo")
    for missing in ("/tmp/none", "/tmp/fifo", "/tmp"):
        assert shared.run("cp", f"{box}:{missing}", "place/old").returncode in (2, 3)
    nowhere = shared.run("cp", f"{box}:/etc/passwd", "no/such/place")
    assert (nowhere.returncode, nowhere.stdout) == (1, b"")
    assert nowhere.stderr == b"agent-sandbox: no/such/place: No such file or directory\n"
    assert [path.name for path in place.iterdir()] == ["old"]
    assert (place / "old").read_text() == "old"


def stalls(size: int) -> Callable[[Talk], None]:
    """Return a service whose file stops after half of its bytes, and goes no further."""

    def script(talk: Talk) -> None:
        if "Stat" in talk.requests[-1].line:
            entry = {"name": "f", "path": "/f", "type": "FILE_TYPE_FILE", "size": str(size)}
            body = json.dumps({"entry": entry}).encode()
            talk.send(answer(body, headers=b"Content-Type: application/json\r\n"))
        else:
            talk.send(answer(bytes(size // 2), length=size))
            talk.wait_end()

    return script


def test_ctrl_c_in_the_middle_of_a_copy_leaves_the_old_file_and_no_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shell.files / "place"
    place.mkdir()
    (place / "old").write_text("old")
    with BadPeer(stalls(4 * SPILL_BYTES)) as peer:
        there = {"AGENT_SANDBOX_API_URL": peer.url, "AGENT_SANDBOX_URL": peer.url}
        monkeypatch.setattr(Shell, "environment", {**shell.environment, **there})
        with shell.start("cp", f"{SANDBOX_ID}:/f", "place/old") as process:
            wait_until(lambda: len(list(place.iterdir())) > 1, WAIT_S)
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 130
            assert process.communicate() == (b"", b"")
    assert [path.name for path in place.iterdir()] == ["old"]
    assert (place / "old").read_text() == "old"


def test_a_copy_replaces_no_device_and_no_link(shared: Shell, box: str) -> None:
    shared.says("cp", "-", f"{box}:fresh", stdin=b"new")
    os.mkfifo(shared.files / "fifo")
    (shared.files / "in").mkdir()
    os.mkfifo(shared.files / "in" / "fresh")
    for target, reason in (
        ("fifo", "fifo: it is no regular file"),
        ("in", "in/fresh: it is no regular file"),
        ("nowhere/", "nowhere/ is no directory"),
    ):
        done = shared.run("cp", f"{box}:fresh", target)
        assert (done.returncode, done.stdout) == (2, b"")
        assert reason in done.stderr.decode()
    assert (shared.files / "fifo").is_fifo()
    assert (shared.files / "in" / "fresh").is_fifo()
    assert not (shared.files / "nowhere").exists()
    (shared.files / "link").symlink_to("named")
    for _ in range(2):
        shared.says("cp", f"{box}:fresh", "link")
        assert (shared.files / "link").is_symlink()
        assert (shared.files / "named").read_text() == "new"
        (shared.files / "named").write_text("old")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cp", "a", "b"], "one of the two is in a sandbox"),
        (["cp", "x:a", "y:b"], "one of the two is in a sandbox"),
        (["cp", "-", "BOX:"], "name the file that standard input is to become"),
        (["cp", "missing", "BOX:"], "missing: No such file or directory"),
        (["cp", ".", "BOX:"], "no regular file; a directory goes as an archive"),
        (["cp", "./a:b", "c"], "one of the two is in a sandbox"),
        (["run", "BOX"], "say what to run"),
        (["run", "BOX", "--"], "say what to run"),
        (["run", "BOX", "--timeout", "3", "--", "true"], "options come before the sandbox"),
        (["run", "--timeout", "0", "BOX", "true"], "a positive number of seconds"),
        (["run", "--env", "NAME", "BOX", "true"], "write NAME=VALUE"),
        (["kill"], "name the sandboxes to end, or say --all"),
        (["kill", "--all", "BOX"], "name the sandboxes to end, or say --all"),
        (["create", "--metadata", "x"], "write NAME=VALUE"),
        (["ls"], "the following arguments are required: SANDBOX[:PATH]"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(
    shared: Shell, box: str, arguments: list[str], says: str
) -> None:
    done = shared.run(*(word.replace("BOX", box) for word in arguments))
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_output_comes_on_its_own_stream_and_the_status_is_the_commands(
    shared: Shell, box: str
) -> None:
    done = shared.run("run", box, "--", "sh", "-c", r"printf 'a\0\377'; echo b >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\0\xff", b"b\n")
    assert shared.says("run", "--cwd", "/tmp", "--env", "A=b c", box, 'pwd; echo "$A"') == (
        "/tmp\nb c\n"
    )
    assert shared.says("run", box, "--", "echo", "*", "$HOME", "--", "-n") == "* $HOME -- -n\n"
    assert shared.run("run", box, "kill -9 $$").returncode == 137
    missing = shared.run("run", box, "--", "no-such-program", "x")
    assert (missing.returncode, missing.stdout) == (127, b"")
    assert b"no such program" in missing.stderr
    assert shared.run("run", "--timeout", "0.2", box, "sleep 60").returncode == 8


def test_output_comes_while_the_command_runs_and_ctrl_c_kills_it(shared: Shell, box: str) -> None:
    with shared.start("run", box, "--", "sh", "-c", "echo $$; exec sleep 1234") as process:
        assert process.stdout is not None
        pid = process.stdout.readline().decode().strip()
        assert shared.says("run", box, f"cat /proc/{pid}/comm") == "sleep\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.communicate()[1] == b""
    wait_until(lambda: shared.run("run", box, f"test -e /proc/{pid}").returncode == 1, WAIT_S)


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(shared: Shell, box: str) -> None:
    with shared.start("run", box, "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(WAIT_S) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_short_output_that_nobody_reads_ends_as_quietly(shared: Shell, box: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nowhere:
        done = subprocess.run(
            shared.command("list"),
            env=shared.environment,
            stdout=nowhere,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_json_is_for_programs(shared: Shell, box: str) -> None:
    (entry,) = [e for e in json.loads(shared.says("list", "--json")) if e["sandbox_id"] == box]
    assert set(entry) == {"sandbox_id", "state", "started_at", "end_at", "metadata"}
    made = json.loads(shared.says("create", "--json", "--metadata", "job=4 2"))
    assert made["metadata"] == {"job": "4 2"}
    assert json.loads(shared.says("kill", "--json", made["sandbox_id"])) == {
        "ended": [made["sandbox_id"]]
    }
    shared.says("cp", "-", f"{box}:/tmp/j/x", stdin=b"12")
    (file,) = json.loads(shared.says("ls", "--json", f"{box}:/tmp/j"))
    assert (file["name"], file["size_bytes"], file["type"]) == ("x", 2, "file")
    assert json.loads(shared.says("ls", "--json", f"{box}:/tmp/j/x")) == [file]
    done = shared.run("run", "--json", box, "echo a; echo b >&2; exit 3")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {
        "exit_code": 3,
        "stdout": "a\n",
        "stderr": "b\n",
        "stdout_omitted_bytes": 0,
        "stderr_omitted_bytes": 0,
    }


def test_the_beginning_of_an_id_will_do_where_it_fits_one(shared: Shell, box: str) -> None:
    assert shared.says("run", box[:12], "echo here") == "here\n"
    other = shared.create()
    for few in (box[:1], "izzzz"):
        assert shared.run("ls", few).returncode == 6
    assert shared.run("kill", other, "izzzz").returncode == 6
    assert other not in shared.says("list")


def test_names_in_a_sandbox_do_nothing_to_a_terminal(shared: Shell, box: str) -> None:
    shared.says("run", box, "mkdir -p /tmp/evil; touch $'/tmp/evil/\\e[31m[red]\\n\\u202e'")
    listed = shared.says("ls", f"{box}:/tmp/evil")
    assert listed.endswith("\t\\x1b[31m[red]\\n\\u202e\n")
    assert listed.count("\n") == 1
    told = shared.says("ls", "--json", f"{box}:/tmp/evil")
    assert told.rstrip("\n").isprintable()
    assert json.loads(told)[0]["name"] == "\x1b[31m[red]\n\u202e"
    wild = "\x9b2J\x7f\U0001f600\U000e0001"
    done = json.loads(printed := shared.says("run", "--json", box, "--", "printf", "%s", wild))
    assert done["stdout"] == wild
    assert printed.rstrip("\n").isprintable()


def test_what_the_encoding_of_the_output_lacks_is_escaped(
    shared: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = {**shared.environment, "PYTHONIOENCODING": "latin-1"}
    monkeypatch.setattr(Shell, "environment", latin)
    done = shared.run("create", "--json", "--metadata", "who=Zoë 李")
    made = json.loads(done.stdout.decode("latin-1"))
    assert made["metadata"] == {"who": "Zoë 李"}
    listed = shared.run("list").stdout.decode("latin-1")
    assert "who=Zoë \\u674e" in listed
    shared.says("kill", made["sandbox_id"])


def test_an_empty_directory_is_told_on_a_terminal_and_is_no_line_elsewhere(
    shared: Shell, box: str
) -> None:
    shared.says("run", box, "--", "mkdir", "/tmp/empty")
    assert shared.says("ls", f"{box}:/tmp/empty") == ""
    assert shared.on_terminal("ls", f"{box}:/tmp/empty/") == (0, "There is nothing in /tmp/empty.")
    status, shown = shared.on_terminal("ls", f"{box}:/etc")
    assert status == 0
    assert re.search(r"MODE.*SIZE.*MODIFIED.*NAME", shown)
    assert "passwd" in shown


def test_the_doctor_names_what_is_in_force(shared: Shell) -> None:
    done = shared.run("doctor", "--json")
    found = {check["check"]: check for check in json.loads(done.stdout)}
    core = "python" if os.environ.get("AGENT_SANDBOX_PURE_PYTHON") else "native"
    assert found["byte core"]["found"] == core
    assert {"isolation", "seccomp", "limit: memory", "limit: disk"} <= set(found)
    assert {"state directory", "uploads directory"} <= set(found)
    assert done.returncode == (0 if all(check["works"] for check in found.values()) else 7)
    for check in found.values():
        assert check["works"] or check["remedy"]
    lines = shared.run("doctor").stdout.decode().splitlines()
    assert [line.split("\t")[0] for line in lines] == list(found)


def test_the_doctor_tells_where_uploads_cannot_be_kept(
    shared: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    elsewhere = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path / "file")}
    monkeypatch.setattr(Shell, "environment", {**shared.environment, **elsewhere})
    found = {c["check"]: c for c in json.loads(shared.run("doctor", "--json").stdout)}
    uploads = found["uploads directory"]
    assert (uploads["works"], uploads["found"]) == (False, str(tmp_path / "file"))
    assert "AGENT_SANDBOX_UPLOADS_DIR" in uploads["remedy"]


def test_another_service_may_have_the_sandboxes(
    shared: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {"AGENT_SANDBOX_API_URL": "http://127.0.0.1:9"}
    monkeypatch.setattr(Shell, "environment", {**shared.environment, **elsewhere})
    gone = shared.run("list")
    assert gone.returncode == 9
    assert b"AGENT_SANDBOX_API_URL" in gone.stderr
    assert shared.run("create", "--isolation", "none").returncode == 2
    down = {c["check"]: c for c in json.loads(shared.run("doctor", "--json").stdout)}
    assert not down["sandbox service"]["works"]
