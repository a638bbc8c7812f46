"""Every test of this folder that takes `core` runs on both implementations.

The native module is not optional here: where it is missing, its half of the suite fails. Only
`AGENT_SANDBOX_PURE_PYTHON=1`, which asks for a run without it, leaves that half away.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

PURE = os.environ.get("AGENT_SANDBOX_PURE_PYTHON") == "1"
IMPLEMENTATIONS = ["python"] if PURE else ["native", "python"]


def load(implementation: str) -> ModuleType:
    name = {"native": "_native", "python": "_python"}[implementation]
    return importlib.import_module(f"agent_sandbox.bytestream.{name}")


@pytest.fixture(params=IMPLEMENTATIONS, scope="session")
def core(request: pytest.FixtureRequest) -> ModuleType:
    return load(request.param)


@pytest.fixture(scope="session")
def cores() -> list[ModuleType]:
    """Every implementation of this run, to be compared; the pure one is the last."""
    return [load(name) for name in IMPLEMENTATIONS]
