"""The PEP 517 build backend: maturin where Rust is, hatchling where it is not.

- `cargo` on the PATH: maturin compiles the native byte core. A failure to compile is an error;
  nothing falls back in silence.
- no `cargo`, or one older than the core's `rust-version`: a pure-Python wheel. One line says so,
  and the wheel's file name says it too, since pip shows that name and hides whatever a backend
  prints. maturin is not even asked: its own hook would download a Rust toolchain.

`AGENT_SANDBOX_BUILD=python` or `=native` decides by hand. The sdist is the same on every machine.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# pip runs this backend before it reads which Python the package requires, so that it must tell.
if sys.version_info < (3, 11):  # noqa: UP036 - reached on the versions that it refuses
    raise SystemExit("agent-sandbox: needs Python 3.11 or later.")

MATURIN = "maturin>=1.9,<2"
NOTE = (
    "agent-sandbox: {reason}, so this is the pure-Python install: complete, only slower on large"
    " files."
)

Settings = Mapping[str, Any] | None


def native() -> bool:
    """Whether this build compiles the Rust core."""
    choice = os.environ.get("AGENT_SANDBOX_BUILD", "")
    if choice not in ("", "native", "python"):
        raise SystemExit("AGENT_SANDBOX_BUILD must be 'native' or 'python', or not be set at all.")
    if choice == "python":
        return False
    lack = lacking()
    if choice == "native" and lack is not None:
        raise SystemExit(f"AGENT_SANDBOX_BUILD=native needs another toolchain: {lack[1]}.")
    return lack is None


def lacking() -> tuple[str, str] | None:
    """Return why the core cannot be compiled here, as a build tag and in words; else None."""
    cargo = shutil.which("cargo")
    if cargo is None:
        return "no_rust_toolchain", "no Rust toolchain (no cargo on the PATH)"
    tomllib = importlib.import_module("tomllib")  # an older Python must get as far as being told
    wanted = tomllib.loads(Path("Cargo.toml").read_text())["package"]["rust-version"]
    told = subprocess.run(  # noqa: S603 - the cargo that the build would use anyway
        [cargo, "--version"], capture_output=True, text=True, check=False
    )
    found = re.match(r"cargo (\d+)\.(\d+)", told.stdout)
    # A cargo that does not even tell its version is left to fail aloud: it is broken, not absent.
    if found and tuple(map(int, found.groups())) < tuple(map(int, wanted.split(".")[:2])):
        return "rust_too_old", f"cargo is older than the Rust {wanted} that the native core needs"
    return None


def _backend() -> Any:
    # Imported late: only the chosen one is installed.
    return importlib.import_module("maturin" if native() else "hatchling.build")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what the chosen backend needs beyond hatchling."""
    return [MATURIN] if native() else []


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Return nothing: the sdist is made by hatchling alone."""
    return []


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the source distribution, with or without Rust on this machine."""
    name: str = importlib.import_module("hatchling.build").build_sdist(sdist_directory)
    return name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Write the metadata that the wheel will have; the same for an editable one."""
    backend = _backend()
    if native():
        name: str = backend.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
        return name
    # Under pip, hatchling has no such hook; a pure wheel is quickly built and taken apart.
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / backend.build_wheel(folder, config_settings)
        distribution, version, *_ = wheel.name.split("-")
        info = f"{distribution}-{version}.dist-info"
        with zipfile.ZipFile(wheel) as archive:
            names = [entry for entry in archive.namelist() if entry.startswith(f"{info}/")]
            archive.extractall(metadata_directory, names)
    return info


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel: native with cargo, else pure and marked as such."""
    name: str = _backend().build_wheel(wheel_directory, config_settings, metadata_directory)
    return name if native() else _marked(Path(wheel_directory), name)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the editable wheel: native with cargo, else pure and marked as such."""
    name: str = _backend().build_editable(wheel_directory, config_settings, metadata_directory)
    return name if native() else _marked(Path(wheel_directory), name)


def _marked(folder: Path, name: str) -> str:
    """Give a pure wheel the build tag that tells why it is pure, and print the note."""
    lack = None if os.environ.get("AGENT_SANDBOX_BUILD") else lacking()
    build = f"0.pure_python.{lack[0]}" if lack else "0.pure_python"
    distribution, version, *tags = name.split("-")
    marked = "-".join([distribution, version, build, *tags])
    info = f"{distribution}-{version}.dist-info"
    with (
        zipfile.ZipFile(folder / name) as old,
        zipfile.ZipFile(folder / marked, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        wheel = old.read(f"{info}/WHEEL") + f"Build: {build}\n".encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel).digest()).rstrip(b"=").decode()
        row = f"{info}/WHEEL,sha256={digest},{len(wheel)}"
        record = old.read(f"{info}/RECORD").decode().splitlines()
        record = [row if line.startswith(f"{info}/WHEEL,") else line for line in record]
        changed = {f"{info}/WHEEL": wheel, f"{info}/RECORD": "\n".join([*record, ""]).encode()}
        for entry in old.infolist():
            new.writestr(entry, changed.get(entry.filename) or old.read(entry))
    (folder / name).unlink()
    if lack:
        _tell(NOTE.format(reason=lack[1]))
    return marked


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
    # A front end that captures stderr still leaves the terminal, where there is one.
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            print(line, file=terminal, flush=True)


if __name__ == "__main__":  # the Makefile asks: one line where the core cannot be compiled
    found = lacking()
    if found:
        print(NOTE.format(reason=found[1]))
