"""Look-ups of names that strangers choose, kept apart from those of the program itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

MOST_LOOKUPS = 32
"""Most of them at once. A name server that does not answer holds each up for half a minute."""

_room = threading.BoundedSemaphore(MOST_LOOKUPS)


async def system_resolver(host: str, port: int) -> list[str]:
    """Return every address that the operating system knows for a name.

    Each look-up has a thread of its own, which cannot be stopped, but holds up neither the loop's
    own threads, where other connections of the program look their names up, nor its end.

    Raises:
        OSError: There is no such name.
        TimeoutError: Too many look-ups are under way.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def tell(addresses: list[str], error: BaseException | None) -> None:
        if found.done():  # given up
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look() -> None:
        addresses: list[str] = []
        fault: BaseException | None = None
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError) as error:
            fault = error
        finally:
            _room.release()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, addresses, fault)

    if not _room.acquire(blocking=False):
        raise TimeoutError
    try:
        threading.Thread(target=look, name="lookup", daemon=True).start()
    except BaseException:
        _room.release()
        raise
    return await found
