"""How the build decides between Rust and pure Python, and what it tells."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from tests.support.builds import ROOT, Run, environment

NOTE = "agent-sandbox: no Rust toolchain (no cargo on the PATH), so this is the pure-Python install"
TAG = "0.pure_python.no_rust_toolchain"


@pytest.fixture
def tree(sdist: Path, tmp_path: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    return folder


def pip(*words: str) -> list[str]:
    return [sys.executable, "-m", "pip", "wheel", "--no-deps", *words]


def test_plain_pip_install_without_rust_says_so_in_its_own_output(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "v", with_pip=True)
    python = tmp_path / "v" / "bin" / "python"
    shown = run([python, "-m", "pip", "install", "--no-deps", "."], "pure", cwd=tree).stdout
    (line,) = (line for line in shown.splitlines() if "Created wheel for agent-sandbox" in line)
    assert TAG in line
    probe = "import agent_sandbox.bytestream as b; print(b.IMPLEMENTATION)"
    assert run([python, "-c", probe], "pure", cwd=tmp_path).stdout == "python\n"


def test_on_a_terminal_one_line_says_it_though_pip_hides_what_backends_print(
    tree: Path, tmp_path: Path
) -> None:
    command = shlex.join([*pip("--quiet", "--wheel-dir", str(tmp_path / "out"), str(tree))])
    done = subprocess.run(
        ["script", "-qec", command, os.devnull],
        env=environment("pure"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.count(NOTE) == 1


def test_a_pure_wheel_that_was_asked_for_gives_no_reason(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    run(
        pip("--wheel-dir", str(tmp_path / "out"), str(tree)), "native", AGENT_SANDBOX_BUILD="python"
    )
    (wheel,) = (tmp_path / "out").iterdir()
    assert wheel.name == "agent_sandbox-0.1.0-0.pure_python-py3-none-any.whl"


def test_an_editable_install_without_rust_is_pure_too(run: Run, tree: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=True)
    python = tmp_path / "v" / "bin" / "python"
    run([python, "-m", "pip", "install", "--no-deps", "--editable", "."], "pure", cwd=tree)
    probe = "import agent_sandbox.bytestream as b; print(b.IMPLEMENTATION, b.__file__)"
    implementation, file = run([python, "-c", probe], "pure", cwd=tmp_path).stdout.split()
    assert implementation == "python"
    assert Path(file).is_relative_to(tree)


def test_no_build_without_rust_asks_for_maturin_or_a_toolchain(run: Run) -> None:
    ask = (
        "import agent_sandbox_build as b;"
        "print(b.get_requires_for_build_wheel(), b.get_requires_for_build_editable(),"
        " b.get_requires_for_build_sdist())"
    )
    backend = str(ROOT / "python" / "build_backend")
    assert run([sys.executable, "-c", ask], "pure", PYTHONPATH=backend).stdout == "[] [] []\n"


def test_a_compiler_that_fails_is_an_error_and_not_a_silent_fallback(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "cargo").write_text("#!/bin/sh\necho 'the compiler is broken' >&2\nexit 101\n")
    (broken / "cargo").chmod(0o755)
    path = f"{broken}:{environment('pure')['PATH']}"
    out = tmp_path / "out"
    done = run(pip("--wheel-dir", str(out), str(tree)), "pure", check=False, PATH=path)
    assert done.returncode != 0
    assert TAG not in done.stdout + done.stderr
    assert not out.exists() or not list(out.iterdir())


def test_a_cargo_too_old_for_the_core_counts_as_none_and_is_named(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    old = tmp_path / "bin"
    old.mkdir()
    (old / "cargo").write_text("#!/bin/sh\necho 'cargo 1.63.0 (fd9c4297c 2022-07-01)'\n")
    (old / "cargo").chmod(0o755)
    path = f"{old}:{environment('pure')['PATH']}"
    shown = run(pip("--wheel-dir", str(tmp_path / "out"), str(tree)), "pure", PATH=path).stdout
    (line,) = (line for line in shown.splitlines() if "Created wheel for agent-sandbox" in line)
    assert "0.pure_python.rust_too_old" in line
    backend = tree / "python" / "build_backend" / "agent_sandbox_build.py"
    told = run([sys.executable, backend], "pure", cwd=tree, PATH=path).stdout
    assert told.startswith("agent-sandbox: cargo is older than the Rust 1.")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("native", "AGENT_SANDBOX_BUILD=native needs another toolchain: no Rust toolchain"),
        ("rust", "AGENT_SANDBOX_BUILD must be 'native' or 'python', or not be set at all."),
    ],
)
def test_a_choice_that_cannot_be_had_is_refused(
    run: Run, tree: Path, choice: str, says: str
) -> None:
    done = run(pip(str(tree)), "pure", check=False, cwd=tree, AGENT_SANDBOX_BUILD=choice)
    assert done.returncode != 0
    assert says in done.stdout + done.stderr


def test_the_sdist_holds_what_a_build_and_its_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "Cargo.toml",
        "Cargo.lock",
        "Makefile",
        "README.md",
        "LICENSE",
        "rust/lib.rs",
        "python/build_backend/agent_sandbox_build.py",
        "python/agent_sandbox/py.typed",
        "tests/vectors/base64.json",
        "tests/conftest.py",
    } <= held
    assert not any(name.endswith((".so", ".pyc")) or "/target/" in name for name in held)


def test_an_older_python_is_told_what_is_needed_in_one_line(run: Run) -> None:
    backend = ROOT / "python" / "build_backend" / "agent_sandbox_build.py"
    older = (
        "import runpy, sys; sys.version_info = (3, 9, 18); sys.modules['tomllib'] = None;"
        f"runpy.run_path({str(backend)!r})"
    )
    done = run([sys.executable, "-c", older], "pure", check=False)
    assert (done.returncode, done.stderr) == (1, "agent-sandbox: needs Python 3.11 or later.\n")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('case "$*" in *ensurepip*) exit 1;; esac', "apt install python3-venv"),
        ('case "$*" in *version_info*) exit 1;; -V) echo Python 3.10.13;; esac', "3.10.13, and"),
        ("exit 127", "does not run: name a Python 3.11 or later"),
        (None, "does not run: name a Python 3.11 or later"),
    ],
    ids=["no-venv", "too-old", "broken", "missing"],
)
def test_make_without_a_usable_python_says_what_to_do_and_leaves_no_environment(
    tmp_path: Path, script: str | None, says: str
) -> None:
    python = tmp_path / "python3"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\nexit 0\n")
        python.chmod(0o755)
    done = subprocess.run(
        [
            "make",
            "-C",
            str(ROOT),
            f"VENV={tmp_path}/v",
            f"PYTHON={python}",
            f"{tmp_path}/v/bin/python",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "v").exists()
