"""The public JavaScript SDK of E2B is a client of `agent-sandbox serve`, unchanged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import trustme
from tests.support.express import Service, environment, served
from tests.support.node import NODE, installed_packages
from tests.support.tls import tls_before

SCRIPT = Path(__file__).parent / "js" / "e2b.mjs"


def part(name: str, **where: str) -> Any:
    """Run one part of the script in a sandbox of its own and return what it prints."""
    done = subprocess.run(
        [str(NODE), str(SCRIPT), name],
        env=environment({"AGENT_SANDBOX_TS": str(installed_packages()), **where}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def at(service: Service) -> dict[str, str]:
    return {
        "E2B_API_KEY": "e2b_" + "0" * 40,
        "E2B_API_URL": service.url,
        "E2B_SANDBOX_URL": service.url,
    }


def test_the_control_plane_serves_the_sdk(tcp: Service) -> None:
    assert part("control", **at(tcp)) == {
        "id": True,
        "metadata": {"purpose": "js & more"},
        "listed": True,
        "prolonged": True,
        "shortened": False,
        "running": True,
        "paused": ["SandboxError", 501],
        "killed": True,
        "killedAgain": False,
        "runningThen": False,
        "connected": "SandboxNotFoundError",
        "info": "SandboxNotFoundError",
    }


def test_every_kind_of_content_and_every_file_call_works(tcp: Service) -> None:
    assert part("files", **at(tcp)) == {
        "text": "hällo\n",
        "buffer": True,
        "blob": True,
        "stream": True,
        "streamed": True,
        "many": ["/home/user/m/1", "/tmp/ü 2"],
        "made": [True, False],
        "info": [5, 0o644, "user", "file"],
        "names": [["a", "dir"], ["f", "file"]],
        "moved": "/w/g",
        "there": [False, True],
        "missing": "FileNotFoundError",
        "outside": "InvalidArgumentError",
    }


def test_a_watch_tells_what_happened(tcp: Service) -> None:
    told = part("watch", **at(tcp))
    assert told["missing"] == "FileNotFoundError"
    for expected in ("create f", "write f", "create sub", "create sub/g", "remove f"):
        assert expected in told["seen"]


def test_commands_run_are_fed_watched_and_killed(tcp: Service) -> None:
    assert part("commands", **at(tcp)) == {
        "done": ["hällo\n/tmp\n", "oh\n", 0],
        "out": "hällo\n/tmp\n",
        "exit": ["CommandExitError", 3, "partly\n"],
        "one": "from the files",
        "listed": [["-l", "-c", "cat"]],
        "fed": [0, True],
        "killed": [True, False],
        "late": "TimeoutError",
    }


def test_a_terminal_takes_input_and_another_size(tcp: Service) -> None:
    assert part("pty", **at(tcp)) == {"ended": 7, "size": True, "killed": [True, False]}


def test_a_domain_and_a_key_are_enough_behind_a_proxy_that_speaks_tls(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("canary-key")
    domain, authority = "sandboxes.example", trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    certificate = authority.issue_cert(domain, f"*.{domain}")
    with tls_before(certificate) as proxy:
        name = f"{domain}:{proxy.port}"
        options = ("--api-key-file", str(keys), "--domain", name)
        with served(tmp_path, *options) as service:
            proxy.upstream = service.url
            where = {
                "E2B_API_KEY": "canary-key",
                "E2B_DOMAIN": name,
                "NODE_EXTRA_CA_CERTS": str(ca),
                "RESOLVE_TO_LOOPBACK": "1",
            }
            assert part("domain", **where) == {"read": "by name", "sandboxDomain": name}
