"""A real Express for tests: a process on a port or behind a unix socket, and a client for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx2

START_TIMEOUT_S = 30
END_TIMEOUT_S = 20


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Look again until the condition holds; for what other processes do without telling."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def settled(count: Callable[[], int], calm_s: float = 0.3, timeout_s: float = 10.0) -> int:
    """Return a number once it has not changed for a moment: spare sandboxes are made meanwhile."""
    end = time.monotonic() + timeout_s
    seen, since = count(), time.monotonic()
    while time.monotonic() - since < calm_s:
        assert time.monotonic() < end, "it never settled"
        time.sleep(0.01)
        if (now := count()) != seen:
            seen, since = now, time.monotonic()
    return seen


def hand_over(root: Path) -> None:
    """Give everything in a sandbox's root to the service's user, as if it was made inside."""
    owner = root.stat()
    for directory, names, files, fd in os.fwalk(root, follow_symlinks=False):
        assert directory
        for name in names + files:
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=fd, follow_symlinks=False)


@dataclass
class Box:
    """One sandbox, seen through the wire."""

    http: httpx2.Client
    sandbox_id: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"e2b-sandbox-id": self.sandbox_id, "x-access-token": self.token}

    def get(self, path: str, **more: Any) -> httpx2.Response:
        headers = self.headers | {"accept-encoding": "identity"} | more.pop("headers", {})
        return self.http.get("/files", params={"path": path}, headers=headers, **more)

    def put(self, path: str, data: bytes = b"", **more: Any) -> httpx2.Response:
        headers = self.headers | {"content-type": "application/octet-stream"}
        headers |= more.pop("headers", {})
        params = {"path": path}
        return self.http.post("/files", params=params, content=data, headers=headers, **more)

    def rpc(self, name: str, **message: Any) -> httpx2.Response:
        url = f"/filesystem.Filesystem/{name}"
        return self.http.post(url, json=message, headers=self.headers)

    def kill(self) -> httpx2.Response:
        return self.http.delete(f"/sandboxes/{self.sandbox_id}")


class Service:
    """A running Express process."""

    def __init__(
        self, process: subprocess.Popen[bytes], http: httpx2.Client, state_dir: Path, log: Path
    ) -> None:
        self.process = process
        self.http = http
        self.state_dir = state_dir
        self._log = log
        self.url = str(http.base_url)

    def create(self, timeout: int = 300, **more: Any) -> Box:
        answer = self.http.post(
            "/v2/sandboxes", json={"templateID": "base", "timeout": timeout} | more
        )
        assert answer.status_code == 201, answer.text
        body = answer.json()
        return Box(self.http, body["sandboxID"], body["envdAccessToken"])

    def root_of(self, box: Box) -> Path:
        """Return the sandbox's root directory on the host."""
        (root,) = self.state_dir.glob(f"instances/*/{box.sandbox_id}/root")
        return root

    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> int:
        """End it by SIGTERM and return its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_TIMEOUT_S)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without what would change the service, plus `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AGENT_SANDBOX_", "E2B_"))}
    return kept | dict(more or {})


@contextlib.contextmanager
def served(
    directory: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    api_key: str = "",
    command: Sequence[str] = (sys.executable, "-m", "agent_sandbox"),
) -> Iterator[Service]:
    """Run `agent-sandbox serve` on a free port of loopback."""
    log = directory / "serve.log"
    state = directory / "serve-state"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", "--state-dir", str(state), *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(env),
        )
    with _ended(process):
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, log.read_text()
        headers = {"x-api-key": api_key} if api_key else {}
        with httpx2.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as http:
            yield Service(process, http, state, log)


class Child(Service):
    """An Express child: lives as long as its lifeline."""

    lifeline: int
    socket_path: Path

    def cut_lifeline(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    @classmethod
    def of(cls, process: subprocess.Popen[bytes], path: Path, state: Path, log: Path) -> Self:
        transport = httpx2.HTTPTransport(uds=str(path))
        http = httpx2.Client(base_url="http://express", transport=transport, timeout=30)
        child = cls(process, http, state, log)
        child.socket_path = path
        return child


@contextlib.contextmanager
def child(
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = (sys.executable, "-m", "agent_sandbox.express"),
    arguments: Sequence[str] = (),
) -> Iterator[Child]:
    """Run Express as a child on a unix socket in `directory`."""
    log = directory / "child.log"
    state = directory / "child-state"
    path = directory / "s"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        reading, writing = os.pipe()
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [
                    *command,
                    f"--fd={listener.fileno()}",
                    f"--lifeline-fd={reading}",
                    f"--state-dir={state}",
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[listener.fileno(), reading],
                env=environment(env),
            )
    os.close(reading)
    with _ended(process):
        running = Child.of(process, path, state, log)
        running.lifeline = writing
        try:
            with running.http:
                yield running
        finally:
            running.cut_lifeline()


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        finally:
            process.kill()
            if process.stdout:
                process.stdout.close()


def raw_socket(service: Service) -> socket.socket:
    """Return a connection to a service, for bytes that no client sends."""
    if isinstance(service, Child):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(service.socket_path))
    else:
        url = httpx2.URL(service.url)
        peer = socket.create_connection((url.host, url.port or 80))
    peer.settimeout(END_TIMEOUT_S)
    return peer


def log_lines(text: str) -> list[dict[str, Any]]:
    """Return the service's log lines; a line that is no JSON fails."""
    return [json.loads(line) for line in text.splitlines()]
