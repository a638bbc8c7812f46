"""Messages with descriptors between Express, its zygote and the porters.

One message is one packet of a SOCK_SEQPACKET socket pair: JSON, with descriptors beside it. The
socket keeps the bounds, its end of file says that the peer is gone. A body too big for a packet
travels in a memory file, as the last descriptor.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_INLINE_BYTES = 4_096
_PACKET_BYTES = 65_536
_MAX_FDS = 8
_MAX_BODY_BYTES = 8_388_608

Message = dict[str, Any]


def open_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends; neither is inherited by programs that are executed."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, fds: list[int] | None = None) -> None:
    """Send one message; the descriptors are duplicated into the peer and stay open here.

    Raises:
        OSError: The peer is gone, or the socket is full (EAGAIN, non-blocking only).
        UnicodeEncodeError: A lone surrogate, which has no form in UTF-8.
    """
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    out = list(fds or [])
    if len(body) <= _INLINE_BYTES:
        socket.send_fds(sock, [body], out)
        return
    memory = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(memory, view) :]
        socket.send_fds(sock, [b"@"], [*out, memory])
    finally:
        os.close(memory)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message and its descriptors (now the caller's), or None at the end.

    Raises:
        BlockingIOError: Nothing is there yet (non-blocking only).
        ValueError: The packet is not a message of ours.
    """
    try:
        body, fds, flags, _ = socket.recv_fds(sock, _PACKET_BYTES, _MAX_FDS)
    except ConnectionError:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    if not body:
        close_all(fds)
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("truncated")
        if body == b"@":
            memory = fds.pop()
            try:
                body = os.pread(memory, _MAX_BODY_BYTES, 0)
            finally:
                os.close(memory)
        message = json.loads(body)
        if not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, IndexError):
        close_all(fds)
        raise ValueError("not a message") from None
    return message, fds


def close_all(fds: list[int]) -> None:
    """Close each descriptor."""
    for fd in fds:
        os.close(fd)
