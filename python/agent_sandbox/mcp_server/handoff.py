"""Hands over what a server that has to end could not finish, to a process of its own.

The official client kills a STDIO server two seconds after it has closed the input. A destroy that
takes longer is handed to `python -m agent_sandbox.mcp_server.finish`, which reads what to do from
its standard input, so that no credential stands in an argument. It is of no use for the embedded
service, whose sandboxes end with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict

from agent_sandbox.client.settings import Settings
from agent_sandbox.mcp_server.logs import log


def hand_off(settings: Settings, sandbox_ids: Iterable[str]) -> None:
    """Let a new process destroy sandboxes; never waits for it, and never raises."""
    order = json.dumps({"settings": asdict(settings), "sandbox_ids": sorted(sandbox_ids)})
    try:
        # In memory and not in a pipe: one that the new process does not read yet holds 64 KiB at
        # most, and the rest of the order would be lost or waited for.
        with open(os.memfd_create("order"), "w+b") as given:
            given.write(order.encode())
            given.seek(0)
            # Its own session: what ends this process, or the terminal, does not end it.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent_sandbox.mcp_server.finish"],
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        process.returncode = 0  # nobody waits for it, and that is no leak
    except OSError as error:
        log.warning("the destruction of sandboxes cannot be handed over (%s)", type(error).__name__)
