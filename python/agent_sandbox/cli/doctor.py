"""`agent-sandbox doctor`: what works on this machine, and how to mend the rest."""

from __future__ import annotations

import argparse
import platform
import socket
from typing import TYPE_CHECKING

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command
from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError, ConfigError, SandboxNotFoundError

if TYPE_CHECKING:
    from agent_sandbox.express.isolation.doctor import Finding

_EXAMPLES = """\
examples:
  agent-sandbox doctor
  agent-sandbox doctor --json

The status is 0 where everything works, and 7 where something does not.
"""

_PORTS = {8000: "mcp --transport http", 8080: "serve"}


def _add(parser: argparse.ArgumentParser) -> None:
    _arguments.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from agent_sandbox.cli import _show
    from agent_sandbox.express.isolation import doctor

    findings = [_python(), _core(), _kernel(), *doctor.describe(), _state(), _service()]
    findings += [_port(port, user) for port, user in _PORTS.items()]
    if arguments.json:
        _show.as_json(
            [
                {"check": f.name, "works": f.works, "found": f.text, "remedy": f.remedy}
                for f in findings
            ]
        )
    else:
        rows = [(f.name, "ok" if f.works else "NO", f.text, f.remedy) for f in findings]
        _show.table(("CHECK", "", "FOUND", "REMEDY"), rows, folded=("FOUND", "REMEDY"))
    return 0 if all(finding.works for finding in findings) else EXIT_STATUS["unsupported"]


def _python() -> Finding:
    from agent_sandbox.express.isolation.doctor import Finding

    return Finding(
        "python", True, f"{platform.python_implementation()} {platform.python_version()}"
    )


def _core() -> Finding:
    from agent_sandbox.bytestream import IMPLEMENTATION
    from agent_sandbox.express.isolation.doctor import Finding

    slow = "For speed: install Rust 1.93 or later, then agent-sandbox again."
    return Finding("byte core", True, IMPLEMENTATION, "" if IMPLEMENTATION == "native" else slow)


def _kernel() -> Finding:
    from agent_sandbox.express.isolation.doctor import Finding
    from agent_sandbox.express.openat2 import require_openat2

    try:
        require_openat2()
    except ConfigError as error:
        return Finding("kernel", False, platform.release(), error.reason)
    return Finding("kernel", True, f"{platform.system()} {platform.release()}")


def _state() -> Finding:
    from agent_sandbox.express.isolation.doctor import Finding
    from agent_sandbox.express.privileges import service_ids
    from agent_sandbox.express.state import default_state_dir, open_state_dir

    name, path = "state directory", default_state_dir()
    try:
        uid, gid = service_ids()
        open_state_dir(path, uid=uid, gid=gid).close()
    except ConfigError as error:
        return Finding(name, False, str(path), error.reason)
    return Finding(name, True, str(path))


def _service() -> Finding:
    from agent_sandbox.cli import _reach
    from agent_sandbox.client.settings import Settings
    from agent_sandbox.express.isolation.doctor import Finding

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
    from agent_sandbox.express.isolation.doctor import Finding

    name = f"port {port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Finding(name, True, "in use", f"Where that is not ours: {user} --port N.")
    return Finding(name, True, f"free, for {user}")


DOCTOR = Command("doctor", "say what works on this machine", _EXAMPLES, _add, _run)
