"""The layers and the homes of third-party libraries, read off the imports themselves.

Every import counts, also one inside a function or under TYPE_CHECKING: a lazy import is still a
dependency. `if TYPE_CHECKING` is no exception on purpose.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "python" / "agent_sandbox"

LAYER = {
    "errors": 0, "limits": 0, "loopback": 0, "memory": 0, "open_files": 0, "bytestream": 0,
    "http1": 1, "models": 1, "output": 1, "paths": 1, "toolkit": 1, "wire": 1,
    "client": 2, "express": 2, "uploads": 2, "sync": 2, "": 2,
    "mcp_server": 3,
    "cli": 4,
    "__main__": 5,
}  # fmt: skip
"""The part of a module (its first name below the package, `""` for the package itself)."""

PARTS_OF_A_CLIENT = {"client", "sync", ""}
"""One part under three names: the package and `sync` only re-export `client`."""

HOMES = {
    "mcp": {"mcp_server", "uploads"},
    "jwt": {"mcp_server"},
    "mcp_types": {"mcp_server", "toolkit", "uploads"},
    "starlette": {"express", "uploads", "mcp_server"},
    "uvicorn": {"express", "http1", "uploads", "mcp_server"},
    "python_multipart": {"express"},
    "prometheus_client": {"express", "uploads"},
    "h11": {"uploads"},
    "asyncpg": {"uploads"},
    "obstore": {"uploads"},
    "httpx2": {"client"},
    "httpx": {"client"},
    "httpcore2": {"client"},
    "httpcore": {"client"},
    "pydantic": {"models", "toolkit", "wire", "client", "express", "mcp_server", "uploads"},
    "pydantic_core": {"mcp_server"},
    "rich": {"cli"},
    "anyio": {"client", "express", "mcp_server", "uploads"},
}
"""Where each library that is not in the standard library may be imported."""


def imported_names(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            module = node.module or ""
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if module == "agent_sandbox" else module


def are_one(part: str, other: str) -> bool:
    return part == other or {part, other} <= PARTS_OF_A_CLIENT


def may_import(part: str, other: str) -> bool:
    if are_one(part, other):
        return True
    if LAYER[part] == LAYER[other] and LAYER[part] < 2:
        return True  # the two lowest layers may use each other; what must not be is a cycle upward
    return LAYER[other] < LAYER[part]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def violations(package: Path) -> Iterator[str]:
    for file in sorted(package.rglob("*.py")):
        where = file.relative_to(package).with_suffix("").parts
        part = "" if where[0] == "__init__" else where[0]
        if part not in LAYER:
            yield f"{'.'.join(where)}: {part} has no layer; give it one in this test"
            continue
        for line, name in imported_names(file.read_text("utf-8")):
            top, *below = name.split(".")
            place = f"{'.'.join(where)}:{line} imports {name}"
            if top == "agent_sandbox":
                other = below[0] if below and below[0] in known_parts(package) else ""
                if not may_import(part, other):
                    yield f"{place}: layer {LAYER[part]} reaches for {LAYER[other]}"
                elif not are_one(part, other) and any(_is_private(word) for word in below):
                    yield f"{place}: it is private there"
            elif top not in sys.stdlib_module_names and part not in HOMES.get(top, set()):
                yield f"{place}: {top} has its home elsewhere ({HOMES.get(top, 'nowhere yet')})"


def known_parts(package: Path) -> set[str]:
    return {entry.stem for entry in package.iterdir()} | set(LAYER) - {""}


def test_every_import_goes_downward_and_every_library_stays_at_home() -> None:
    assert list(violations(PACKAGE)) == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("errors.py", "from agent_sandbox.models import FileInfo", "layer 0 reaches for 1"),
        ("client/x.py", "import agent_sandbox.express.server", "layer 2 reaches for 2"),
        ("express/x.py", "from agent_sandbox import Sandbox", "layer 2 reaches for 2"),
        ("client/x.py", "def f():\n    from agent_sandbox import cli", "layer 2 reaches for 4"),
        ("client/x.py", "import mcp.types", "mcp has its home elsewhere"),
        ("mcp_server/x.py", "import httpx2", "httpx2 has its home elsewhere"),
        ("wire/x.py", "from starlette.requests import Request", "starlette has its home elsewhere"),
        ("express/x.py", "import numpy", "numpy has its home elsewhere (nowhere yet)"),
        ("novel/x.py", "import os", "novel has no layer"),
        ("cli/x.py", "from agent_sandbox.client._sinks import Bytes", "it is private there"),
    ],
)
def test_a_planted_violation_is_found(
    tmp_path: Path, file: str, source: str, complaint: str
) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(source)
    (found,) = violations(tmp_path)
    assert complaint in found


def test_what_the_layers_allow_is_not_complained_about(tmp_path: Path) -> None:
    (tmp_path / "mcp_server").mkdir()
    (tmp_path / "mcp_server" / "x.py").write_text(
        "import json\nimport mcp\nfrom agent_sandbox import Sandbox, errors\n"
        "from agent_sandbox.client import pool\n"
    )
    assert list(violations(tmp_path)) == []


def test_a_relative_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cli.py").write_text("from . import errors")
    with pytest.raises(AssertionError, match="a relative import"):
        list(violations(tmp_path))
