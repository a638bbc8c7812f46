"""What the doctor looks at beside isolation; imported when it is asked for, since it needs much."""

from __future__ import annotations

import platform
import socket

from agent_sandbox.bytestream import IMPLEMENTATION
from agent_sandbox.cli import _reach
from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import AgentSandboxError, ConfigError, SandboxNotFoundError
from agent_sandbox.express.isolation.doctor import Finding, describe
from agent_sandbox.express.openat2 import require_openat2
from agent_sandbox.express.privileges import service_ids
from agent_sandbox.express.state import default_state_dir, open_state_dir
from agent_sandbox.mcp_server.transfers.settings import TransferSettings, default_directory

_PORTS = {8000: "mcp --transport http", 8080: "serve"}


def findings() -> list[Finding]:
    """Look at everything."""
    found = [_python(), _core(), _kernel(), *describe(), _state(), _uploads(), _service()]
    return found + [_port(port, user) for port, user in _PORTS.items()]


def _python() -> Finding:
    return Finding(
        "python", True, f"{platform.python_implementation()} {platform.python_version()}"
    )


def _core() -> Finding:
    slow = "For speed: install Rust 1.93 or later, then agent-sandbox again."
    return Finding("byte core", True, IMPLEMENTATION, "" if IMPLEMENTATION == "native" else slow)


def _kernel() -> Finding:
    try:
        require_openat2()
    except ConfigError as error:
        return Finding("kernel", False, platform.release(), error.reason)
    return Finding("kernel", True, f"{platform.system()} {platform.release()}")


def _state() -> Finding:
    name, path = "state directory", default_state_dir()
    try:
        uid, gid = service_ids()
        open_state_dir(path, uid=uid, gid=gid).close()
    except ConfigError as error:
        return Finding(name, False, str(path), error.reason)
    return Finding(name, True, str(path))


def _uploads() -> Finding:
    name, path = "uploads directory", default_directory()
    try:
        TransferSettings().check()
    except ConfigError as error:
        remedy = f"{error.reason} Or set AGENT_SANDBOX_UPLOADS_DIR to another one."
        return Finding(name, False, str(path), remedy)
    return Finding(name, True, str(path))


def _service() -> Finding:
    name = "sandbox service"
    try:
        where = Settings.resolve().api_url or "your own"
        with _reach.sandboxes() as client:
            return Finding(name, True, f"{where}; sandboxes: {len(client.list())}")
    except SandboxNotFoundError:
        return Finding(name, True, f"{where}, not running: create starts it")
    except AgentSandboxError as error:
        return Finding(name, False, "no answer", vars(error).get("reason", error.text))


def _port(port: int, user: str) -> Finding:
    name = f"port {port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Finding(name, True, "in use", f"Where that is not ours: {user} --port N.")
    return Finding(name, True, f"free, for {user}")
