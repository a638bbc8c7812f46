"""Which implementation a process gets, and that a broken native module is never hidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bytestream.conftest import PURE

import agent_sandbox

PACKAGE = Path(agent_sandbox.__file__).parent
PROGRAM = """
from agent_sandbox import bytestream
print(bytestream.IMPLEMENTATION, bytestream.b64decode.__module__.split(".")[2])
"""


def run(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value for name, value in os.environ.items() if name != "AGENT_SANDBOX_PURE_PYTHON"
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**inherited, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the package without its native module; returns the folder of `bytestream`."""
    target = tmp_path / "agent_sandbox"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    return target / "bytestream"


def test_a_missing_native_module_falls_back(installed: Path) -> None:
    done = run(installed.parents[1])
    assert done.stdout.split() == ["python", "_python"], done.stderr
    assert done.stderr == ""


if not PURE:

    def test_the_native_module_is_taken_where_it_is(installed: Path) -> None:
        (native,) = (PACKAGE / "bytestream").glob("_native.*so")
        shutil.copy(native, installed)
        done = run(installed.parents[1])
        assert done.stdout.split() == ["native", "_native"], done.stderr
        asked = run(installed.parents[1], AGENT_SANDBOX_PURE_PYTHON="1")
        assert asked.stdout.split() == ["python", "_python"], asked.stderr
        for other in ("0", "", "yes"):
            done = run(installed.parents[1], AGENT_SANDBOX_PURE_PYTHON=other)
            assert done.stdout.split() == ["native", "_native"], done.stderr


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise ImportError('undefined symbol: PyFoo')", "ImportError: undefined symbol: PyFoo"),
        ("x = 1", "ImportError: cannot import name 'CappedBytes'"),
        ("raise RuntimeError('no such CPU')", "RuntimeError: no such CPU"),
    ],
)
def test_a_broken_native_module_is_an_error(installed: Path, source: str, error: str) -> None:
    (installed / "_native.py").write_text(source)
    done = run(installed.parents[1])
    assert done.returncode == 1
    assert error in done.stderr
    asked = run(installed.parents[1], AGENT_SANDBOX_PURE_PYTHON="1")
    assert asked.stdout.split() == ["python", "_python"], asked.stderr


def test_a_native_module_that_is_no_library_is_an_error(installed: Path) -> None:
    (installed / "_native.abi3.so").write_bytes(b"\x7fELF and then nothing")
    done = run(installed.parents[1])
    assert done.returncode == 1
    assert "ImportError" in done.stderr
