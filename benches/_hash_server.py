"""The peer of an upload with its digest: a plain socket read loop that feeds `hashlib.sha256`.

Answers each connection (a length of 8 bytes, then the bytes) with the digest. The line on standard
input names a folder to keep each file in, written and synced, or is empty: then nothing is kept.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Serve one connection after the other until the process is ended."""
    folder = sys.stdin.readline().strip()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    for number in itertools.count():
        connection, _ = listener.accept()
        with connection:
            left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            digest = hashlib.sha256()
            file = (Path(folder) / str(number)).open("xb", buffering=0) if folder else None
            while left and (data := connection.recv(262_144)):
                digest.update(data)
                if file is not None:
                    file.write(data)
                left -= len(data)
            if file is not None:
                os.fsync(file.fileno())
                file.close()
            connection.sendall(digest.hexdigest().encode())


if __name__ == "__main__":
    main()
