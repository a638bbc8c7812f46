"""A file on its way into a sandbox that ends meanwhile: never a part of it in another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.upload_parts import chunked

from agent_sandbox.errors import SandboxNotFoundError
from agent_sandbox.mcp_server.transfers.files import CallFiles
from agent_sandbox.uploads.models import PlaceTarget


class Sandbox:
    """Ends after the first chunk of a file, if it is the first of its kind."""

    def __init__(self, name: str, *, ends: bool) -> None:
        self.sandbox_id = name
        self.files = self
        self.written: bytes | None = None
        self._ends = ends

    async def info(self) -> None:
        """Say that it is there."""

    async def write(self, path: str, source: AsyncIterator[bytes]) -> Any:
        """Write a file."""
        body = b""
        async for chunk in source:
            body += chunk
            if self._ends:
                raise SandboxNotFoundError
        self.written = body


async def test_a_default_sandbox_that_ends_under_a_file_gets_no_successor_with_the_rest() -> None:
    first, second = Sandbox("one", ends=True), Sandbox("two", ends=False)

    class Registry:
        async def use(self, _use: Any, _sandbox_id: Any, operation: Any, _error: Any) -> Any:
            try:
                return await operation(first)
            except SandboxNotFoundError:  # a default is replaced
                return await operation(second)

    call: Any = SimpleNamespace(registry=Registry(), use=SimpleNamespace(sandbox_id=None))
    uploads: Any = SimpleNamespace()
    with pytest.raises(SandboxNotFoundError):
        await CallFiles(call, uploads).write(PlaceTarget("/a"), chunked(bytes(100), 10))
    assert second.written is None
