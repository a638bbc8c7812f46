"""The environment in which a package is built: with Rust, or as if there were none."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["native", "pure"] if shutil.which("cargo") else ["pure"]
"""What can be built here. A machine without Rust builds the pure wheel only."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(kind: str, **extra: str) -> dict[str, str]:
    """Return this process's environment, without cargo on the PATH where `kind` is pure."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_S")}
    if kind == "pure":
        folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
        kept["PATH"] = os.pathsep.join(str(f) for f in folders if not (f / "cargo").exists())
    # The sources of an sdist lie elsewhere, but what they depend on is compiled already.
    return {**kept, "CARGO_TARGET_DIR": str(ROOT / "target"), "PYTHONPATH": "", **extra}
