"""The peer of an upload with its digest: a plain socket read loop that feeds `hashlib.sha256`.

Answers each connection (a 8-byte length, then the bytes) with the digest; keeps nothing.
"""

from __future__ import annotations

import hashlib
import socket


def main() -> None:
    """Serve one connection after the other until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            digest = hashlib.sha256()
            while left and (data := connection.recv(262_144)):
                digest.update(data)
                left -= len(data)
            connection.sendall(digest.hexdigest().encode())


if __name__ == "__main__":
    main()
