"""Wheels and environments, each built once for all the tests of this folder."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.builds import KINDS, ROOT, Run, environment


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a program to its end and return its output; a failure fails the test."""

    def run(
        command: Sequence[str | Path],
        kind: str,
        *,
        cwd: Path = ROOT,
        check: bool = True,
        **extra: str,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=environment(kind, **extra),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture(scope="session")
def sdist(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    # Without cargo: the sdist needs no Rust, and is the same with it.
    run([sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT], "pure")
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def wheel(kind: str, sdist: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist, as someone builds it who never saw the repository."""
    folder = tmp_path_factory.mktemp(kind)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    run([*pip, "--wheel-dir", folder, sdist], kind)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="session")
def installed(kind: str, wheel: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that has this wheel and nothing of ours besides."""
    home = tmp_path_factory.mktemp(f"venv-{kind}")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run([python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel], kind)
    return home / "bin"
