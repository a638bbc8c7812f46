"""The simplest use of a file: a function that does no harm when it runs twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from agent_sandbox.uploads.models import PlaceTarget, StoredUpload

Use = Callable[[StoredUpload, AsyncIterator[bytes]], Awaitable[Mapping[str, Any]]]
"""Consumes the bytes of a file and returns a small JSON object, which is recorded."""


class Repeatable:
    """A `Placer` from one function, for a use that may simply be made again.

    Where the outcome of an attempt is not known, the next call runs the function anew; what it
    returned once is recorded, and it never runs after that. For a use that must not happen twice
    write a `Placer` whose `inspect` finds out.
    """

    def __init__(self, use: Use) -> None:
        self._use = use

    async def place(
        self, upload: StoredUpload, data: AsyncIterator[bytes], _target: PlaceTarget
    ) -> Mapping[str, Any]:
        """Run the function."""
        return await self._use(upload, data)

    async def inspect(self, _upload: StoredUpload, _target: PlaceTarget) -> None:
        """Say that an attempt of unknown outcome did nothing that counts."""
