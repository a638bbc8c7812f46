"""The wheels: what is in them, and that they work where nothing else of ours is."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

from tests.support.builds import ROOT, Run

PROBE = """
import agent_sandbox, agent_sandbox.bytestream as b, pathlib
assert b.b64decode("AP8=") == b"\\0\\xff"
print(b.IMPLEMENTATION, pathlib.Path(agent_sandbox.__file__).parent)
"""


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


def test_a_wheel_is_named_for_what_it_runs_on(kind: str, wheel: Path) -> None:
    if kind == "native":
        cpython = f"cp{sys.version_info.major}{sys.version_info.minor}"
        assert f"-{cpython}-{cpython}-" in wheel.name
    else:
        assert wheel.name.endswith("-0.pure_python.no_rust_toolchain-py3-none-any.whl")


def test_a_wheel_holds_the_package_with_its_types_and_nothing_else(kind: str, wheel: Path) -> None:
    held = names(wheel)
    sources = (ROOT / "python" / "agent_sandbox").rglob("*.py*")
    expected = {str(f.relative_to(ROOT / "python")) for f in sources if f.suffix in {".py", ".pyi"}}
    scripts = (ROOT / "python" / "agent_sandbox").rglob("*.mjs")
    expected |= {str(file.relative_to(ROOT / "python")) for file in scripts}
    assert "agent_sandbox/client/providers/node_bridge/main.mjs" in expected
    compiled = {name for name in held if name.endswith(".so")}
    info = {name for name in held if ".dist-info/" in name}
    assert expected <= held
    assert {"agent_sandbox/py.typed", "agent_sandbox/bytestream/_native.pyi"} <= held
    assert any(name.endswith("/LICENSE") for name in info)
    assert len(compiled) == (kind == "native")
    others = held - expected - compiled - info
    assert {name for name in others if not name.startswith("agent_sandbox/")} == set()
    assert not any("test" in Path(name).name for name in held)


def test_the_record_of_a_wheel_agrees_with_its_files(
    kind: str, wheel: Path, installed: Path
) -> None:
    # pip checks names and hashes only in part; `wheel unpack` does it fully, by the RECORD.
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (n for n in archive.namelist() if n.endswith(".dist-info/RECORD"))
        listed = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
        info = archive.read(record.replace("RECORD", "WHEEL")).decode()
    assert listed == names(wheel)
    assert ("Build: 0.pure_python.no_rust_toolchain" in info) == (kind == "pure")


def test_an_installed_wheel_works_from_another_folder(
    kind: str, installed: Path, run: Run, tmp_path: Path
) -> None:
    shown = run([installed / "python", "-I", "-c", PROBE], kind, cwd=tmp_path).stdout.split()
    assert shown[0] == {"native": "native", "pure": "python"}[kind]
    assert Path(shown[1]).is_relative_to(installed.parent)


def test_the_installed_command_tells_its_version(
    kind: str, installed: Path, run: Run, tmp_path: Path
) -> None:
    assert run([installed / "agent-sandbox", "--version"], kind, cwd=tmp_path).stdout == (
        "agent-sandbox 0.1.0\n"
    )


def test_a_real_session_runs_on_the_installed_wheel(
    kind: str, installed: Path, run: Run, tmp_path: Path
) -> None:
    demo = shutil.copy(ROOT / "docs" / "examples" / "demo.py", tmp_path)
    payload = tmp_path / "payload.bin"
    payload.write_bytes(bytes(range(256)) * 100)
    output = run([installed / "python", demo, payload], kind, cwd=tmp_path).stdout
    assert "all four agree: the bytes are the same." in output
