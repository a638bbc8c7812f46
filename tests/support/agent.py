"""An agent with a shell, which runs the instructions of a tool as they are given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def command(instructions: str) -> str:
    """Return the curl line of instructions, as an agent copies it."""
    lines = [line.strip() for line in instructions.splitlines()]
    return next(line for line in lines if line.startswith("printf") and "curl" in line)


def shell(line: str, folder: Path, secret: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line in a folder, with the secret as `T`."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={"T": secret, "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=60,
        check=False,
    )
