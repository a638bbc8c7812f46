"""Exact, bounded, fast file movement for AI agents: a sandbox SDK and an MCP server.

::

    from agent_sandbox import Sandbox

    async with await Sandbox.create() as sandbox:
        await sandbox.files.write("/tmp/hello.txt", "hello")
        print(await sandbox.files.read_text("/tmp/hello.txt"))

The same surface without `await` is in `agent_sandbox.sync`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agent_sandbox.errors import AgentSandboxError, FileSizeLimitError

if TYPE_CHECKING:
    from agent_sandbox.client._streams import AsyncStream
    from agent_sandbox.client.files import Files
    from agent_sandbox.client.sandbox import Sandbox, SandboxClient

__all__ = [
    "AgentSandboxError",
    "AsyncStream",
    "FileSizeLimitError",
    "Files",
    "Sandbox",
    "SandboxClient",
    "__version__",
]

__version__ = "0.1.0"

_LAZY = {
    "AsyncStream": "agent_sandbox.client._streams",
    "Files": "agent_sandbox.client.files",
    "Sandbox": "agent_sandbox.client.sandbox",
    "SandboxClient": "agent_sandbox.client.sandbox",
}
"""Where the names are that need an HTTP client. They are imported when they are first asked for:
a service that imports `agent_sandbox.express` pays for no client."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
