"""A strict decoder of the chunked transfer coding (RFC 9112 section 7.1), without any I/O.

Uploads refuse chunked bodies; this serves the other routes of the same listener (an MCP client may
stream its request).
"""

from __future__ import annotations

import re

_MAX_LINE_BYTES = 256
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class ChunkedError(Exception):
    """The body breaks the coding; where it ends cannot be said."""


class ChunkedDecoder:
    """Turn the bytes of a connection into the bytes of a body, whatever their split.

    Attributes:
        ended: Whether the last chunk and its empty trailer have been read.
    """

    def __init__(self) -> None:
        self.ended = False
        self._line = bytearray()
        self._left = 0
        self._state = "size"

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Decode what `data` adds.

        Returns:
            The pieces of the body, none empty, and the bytes behind its end.

        Raises:
            ChunkedError: A size, a terminator or a trailer is malformed or too long. Trailers
                are refused: nobody here reads them.
        """
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._state == "data":
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = "terminator"
            else:
                end = data.find(b"\n", at)
                taken = data[at : end + 1] if end >= 0 else data[at:]
                at += len(taken)
                self._line += taken
                if len(self._line) > _MAX_LINE_BYTES:
                    raise ChunkedError
                if self._state != "size" and not b"\r\n".startswith(self._line):
                    raise ChunkedError
                if end >= 0:
                    self._end_of_line()
        return pieces, data[at:]

    def _end_of_line(self) -> None:
        if not self._line.endswith(b"\r\n"):
            raise ChunkedError
        line = bytes(self._line[:-2])
        self._line.clear()
        if self._state == "size":
            size = _SIZE_LINE.fullmatch(line)
            if size is None:
                raise ChunkedError
            self._left = int(size[1], 16)
            self._state = "data" if self._left else "trailer"
        elif self._state == "terminator":
            self._state = "size"
        else:
            self.ended = True
