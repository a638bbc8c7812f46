"""Sandboxes through a JavaScript SDK: a Node process of ours that speaks our wire on a unix socket.

The child is started on first need, shared by every client of this process with the same settings,
and lives as long as a pipe from this process stays open. One line of JSON each way begins its life:
what it is to use goes in over that pipe, secrets included; that it is ready, or why not, comes out.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_sandbox.client._calls import Target
from agent_sandbox.client.providers import Endpoint
from agent_sandbox.client.providers.child import child_stderr
from agent_sandbox.client.providers.local import ChildService
from agent_sandbox.errors import ConfigError, SandboxUnavailableError

PROTOCOL = 1
"""Version of the two lines; the bridge refuses another one."""

START_TIMEOUT_S = 30.0
"""How long Node may take to load the SDK."""

_BRIDGE = Path(__file__).with_name("node_bridge") / "main.mjs"
_MAX_LINE_BYTES = 4_096

_PASSED_ON = frozenset(
    {
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "NODE_EXTRA_CA_CERTS",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TZ",
    }
)
"""All of our environment that Node sees. The SDK's own variables are not among them."""

_NOT_FOUND = "Node was not found: install it, or say where it is in AGENT_SANDBOX_NODE."
_NO_PROGRAM = "Node cannot be started: AGENT_SANDBOX_NODE names no program."

_REASONS = {
    "missing": "The folder of AGENT_SANDBOX_NODE_PACKAGES has no node_modules with the package e2b:"
    " run `npm install e2b` there.",
    "broken": "The package e2b cannot be loaded: it may need another version of Node.",
}


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a bridge needs to know.

    Attributes:
        node: The Node program; None looks for `node` on the PATH.
        packages: Folder whose `node_modules` holds the package e2b.
        api_url: Control plane; None is the SDK's own.
        api_key: Its credential; secret, so it has no repr.
        sandbox_url: One base URL for every sandbox's data plane, or None.
    """

    node: str | None
    packages: str
    api_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    sandbox_url: str | None = None


class _Bridge(ChildService):
    def __init__(self, settings: NodeSettings) -> None:
        super().__init__()
        self._settings = settings

    def _launch(self, listener: int, lifeline: int) -> subprocess.Popen[bytes]:
        node = shutil.which(self._settings.node or "node")
        if node is None:
            raise ConfigError(reason=_NO_PROGRAM if self._settings.node else _NOT_FOUND)
        try:
            return subprocess.Popen(  # noqa: S603 - the operator's Node and our own program
                [os.path.abspath(node), str(_BRIDGE), str(listener)],
                pass_fds=(listener,),
                stdin=lifeline,
                stdout=subprocess.PIPE,
                stderr=child_stderr(),
                env={name: value for name, value in os.environ.items() if name in _PASSED_ON},
                cwd="/",
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
            )
        except OSError:
            raise ConfigError(reason=_NO_PROGRAM) from None

    def _spawn(self) -> str:
        path = super()._spawn()
        try:
            self._shake_hands()
        except BaseException:
            self._end_child()
            raise
        return path

    def _shake_hands(self) -> None:
        child, settings = self._child, self._settings
        if child is None or child.stdout is None or self._lifeline is None:
            raise SandboxUnavailableError
        options = {
            "apiUrl": settings.api_url,
            "apiKey": settings.api_key,
            "sandboxUrl": settings.sandbox_url,
        }
        order = {
            "protocol": PROTOCOL,
            "packages": settings.packages,
            "options": {name: value for name, value in options.items() if value is not None},
        }
        with child.stdout as answers:
            # A pipe holds all of it, so that this does not wait for Node to read.
            os.write(self._lifeline, json.dumps(order).encode() + b"\n")
            answer = _read_line(answers.fileno(), time.monotonic() + START_TIMEOUT_S)
        if answer.get("protocol") == PROTOCOL and answer.get("ready") is True:
            return
        if reason := _REASONS.get(str(answer.get("error"))):
            raise ConfigError(reason=reason)
        raise SandboxUnavailableError


def _read_line(fd: int, ends_at: float) -> dict[str, Any]:
    line = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not line.endswith(b"\n"):
        left_s = ends_at - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise SandboxUnavailableError
        chunk = os.read(fd, _MAX_LINE_BYTES)
        line += chunk
        if not chunk or len(line) > _MAX_LINE_BYTES:
            raise SandboxUnavailableError
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
        if isinstance(answer, dict):
            return answer
    raise SandboxUnavailableError


_bridges: dict[NodeSettings, _Bridge] = {}
_lock = threading.Lock()


class NodeProvider:
    """Reaches sandboxes through the npm package e2b, in whole values.

    It makes, finds, lists and ends sandboxes, reads and writes files, and runs commands in the
    foreground. `streaming` is False: bounded reads, streams and downloads are refused before any
    request (`UnsupportedError`, E5006), and so is all else, at the latest by the Node process.

    Args:
        packages: Folder whose `node_modules` holds the package e2b.
        node: The Node program; None looks for `node` on the PATH.
        api_url: Control plane; None is the SDK's own.
        api_key: Its credential.
        sandbox_url: One base URL for every sandbox's data plane, or None.
    """

    streaming = False

    def __init__(
        self,
        packages: str | os.PathLike[str],
        *,
        node: str | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        sandbox_url: str | None = None,
    ) -> None:
        folder = os.path.abspath(packages)
        settings = NodeSettings(node, folder, api_url, api_key, sandbox_url)
        with _lock:
            self._bridge = _bridges.get(settings) or _bridges.setdefault(
                settings, _Bridge(settings)
            )

    def ready(self) -> Endpoint | None:
        """Return the endpoint if the Node process runs."""
        path = self._bridge.ready()
        return None if path is None else _endpoint(path)

    def open(self) -> Endpoint:
        """Return the endpoint, starting Node where it does not run.

        Raises:
            ConfigError: E6000, with a `reason`: there is no Node, or no SDK for it.
            SandboxUnavailableError: E5003: it does not come up.
        """
        return _endpoint(self._bridge.start())

    def stop(self) -> None:
        """End the Node process of these settings; sandboxes live on. The next need starts one."""
        self._bridge.stop()


def _endpoint(path: str) -> Endpoint:
    # No key: the socket is 0600 in a 0700 directory, and the SDK has its credentials itself.
    return Endpoint(Target("http://localhost", {}), uds=path, coding="identity")
