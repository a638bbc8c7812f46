"""Output of any length in bounded memory: the first and the last part, and how much is between."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """What an `OutputBuffer` holds at one moment.

    Attributes:
        head: The first bytes.
        omitted_bytes: How many bytes after them are left out.
        tail: The last bytes.
    """

    head: bytes
    omitted_bytes: int
    tail: bytes


class OutputBuffer:
    """Keeps the first and the last part of what is appended, and counts what lies between.

    Up to `limit_bytes` nothing is left out. Appending costs the same whatever came before. Unlike
    `CappedBytes`, which refuses, this one forgets. Not safe for use from several threads.

    Args:
        limit_bytes: Most bytes to hold, 0 and more; half of them for the first part.
    """

    def __init__(self, limit_bytes: int) -> None:
        if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int):
            raise TypeError("limit_bytes must be an int")
        if limit_bytes < 0:
            raise ValueError("limit_bytes must not be negative")
        self._head_limit = limit_bytes // 2
        self._tail_limit = limit_bytes - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def __len__(self) -> int:
        """Return how many bytes are held."""
        return len(self._head) + len(self._tail)

    @property
    def total_bytes(self) -> int:
        """How many bytes were appended."""
        return self._total

    @property
    def omitted_bytes(self) -> int:
        """How many bytes between the two parts are left out."""
        return self._total - len(self)

    def append(self, chunk: bytes, /) -> None:
        """Take the next bytes."""
        self._total += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if len(chunk) >= self._tail_limit:
            self._tail[:] = chunk[len(chunk) - self._tail_limit :]
            return
        self._tail += chunk
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]  # from the front: nothing is moved

    def skip(self, count: int, /) -> None:
        """Count bytes that were left out before they came here.

        They belong after everything appended so far; what is held of the last part is given up,
        so that the gap stays one.
        """
        if count <= 0:
            return
        self._total += count
        self._head_limit = len(self._head)  # the gap begins here at the latest
        self._tail.clear()

    def output(self) -> Output:
        """Return what is held; where nothing is left out, all of it in `head`."""
        if self.omitted_bytes == 0:
            return Output(bytes(self._head + self._tail), 0, b"")
        return Output(bytes(self._head), self.omitted_bytes, bytes(self._tail))

    def read(self, offset: int, max_bytes: int) -> tuple[int, bytes]:
        """Return bytes from `offset` on, and the offset where they really begin.

        That is later than asked where the bytes there are left out. At the end the bytes are
        empty.

        Args:
            offset: Counted over everything that was ever appended, at least 0.
            max_bytes: Most bytes to return.
        """
        if offset < len(self._head):
            data = bytes(self._head[offset : offset + max_bytes])
            if len(data) < max_bytes and not self.omitted_bytes:
                data += bytes(self._tail[: max_bytes - len(data)])
            return offset, data
        first = self._total - len(self._tail)
        start = min(max(offset, first), self._total)
        return start, bytes(self._tail[start - first : start - first + max_bytes])
