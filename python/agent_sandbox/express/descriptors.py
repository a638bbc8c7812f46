"""Descriptors that are closed once, by whoever holds them last."""

from __future__ import annotations

import os
from types import TracebackType


class Descriptor:
    """Owns a file descriptor: closes it at the end of a `with` block, once."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __enter__(self) -> int:
        return self.fd

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
