"""The event loop's selector, which no command in a sandbox can take away from the service.

Linux bounds the registrations of all epoll instances of one user together
(/proc/sys/fs/epoll/max_user_watches, epoll(7)), and commands in sandboxes are the service's user
for the kernel. One of them that takes all of it would otherwise close the service for everybody:
no new connection could be registered. What epoll has no room for is waited for with poll(2).
"""

from __future__ import annotations

import asyncio
import errno
from collections import ChainMap
from collections.abc import Mapping
from selectors import EVENT_READ, BaseSelector, EpollSelector, PollSelector, SelectorKey
from typing import Any, Protocol, TypeAlias


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


FileDescriptorLike: TypeAlias = int | _HasFileno
"""What `selectors` waits for."""


def make_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop over a `Selector`."""
    return asyncio.SelectorEventLoop(Selector())


class Selector(BaseSelector):
    """Waits with epoll; with poll for those that epoll has no room for."""

    def __init__(self) -> None:
        self._epoll = EpollSelector()
        self._poll = PollSelector()
        # Live views; the mappings themselves are never written to through this.
        self._map: Mapping[FileDescriptorLike, SelectorKey] = ChainMap(
            self._epoll.get_map(),  # type: ignore[arg-type]
            self._poll.get_map(),  # type: ignore[arg-type]
        )

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        """Begin to wait for a file."""
        try:
            return self._epoll.register(fileobj, events, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return self._poll.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        """Stop waiting for a file."""
        return self._holder(fileobj).unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        """Wait for other events of a file."""
        return self._holder(fileobj).modify(fileobj, events, data)

    def _holder(self, fileobj: FileDescriptorLike) -> BaseSelector:
        return self._poll if fileobj in self._poll.get_map() else self._epoll

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait until something is ready, at most `timeout` seconds."""
        if not self._poll.get_map():
            return self._epoll.select(timeout)
        with PollSelector() as both:
            both.register(self._epoll.fileno(), EVENT_READ)
            for key in self._poll.get_map().values():
                both.register(key.fd, key.events, key)
            ready = both.select(timeout)
        found = [(key.data, events) for key, events in ready if key.data is not None]
        return found + self._epoll.select(0) if len(found) < len(ready) else found

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        """Return what is registered."""
        return self._map

    def close(self) -> None:
        """Forget everything."""
        self._epoll.close()
        self._poll.close()
