"""How many connections a server keeps, and who makes room where there are too many."""

from __future__ import annotations

import logging
import resource
import time
from collections import Counter, OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

LOG_PAUSE_S = 10.0
"""Shortest time between two records about connections that had to go."""

SHARE_OF_ONE = 0.75
"""The part of all connections that one address may have."""

_IPV6_BITS_OF_A_SITE = 64
_logger = logging.getLogger("agent_sandbox.http1")

Peer: TypeAlias = str | None
"""Where a connection comes from. None is nearby, where all have one address, and a proxy may be."""


class Leaver(Protocol):
    """A connection that can be told to go."""

    def make_room(self) -> None:
        """End at once; nothing is being served."""


class Crowd:
    """The connections of one server.

    Where there is one too many, the connection that has waited longest for its next request ends,
    among those of the address that has most of such. Where all are being served the new one ends.
    One address has at most three quarters of all, unless it is this machine's own.

    Args:
        most: Connections that are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._most_of_one = max(1, int(most * SHARE_OF_ONE))
        self._all: dict[Leaver, Peer] = {}
        self._of: Counter[Peer] = Counter()
        self._waiting: dict[Peer, OrderedDict[Leaver, None]] = {}
        self._ended = 0
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, connection: Leaver, address: Any) -> None:
        """Take a new connection, which waits for its first request, and let another one go for it.

        Args:
            connection: It may be the one that is told to go.
            address: Its peer, as a socket names it.
        """
        peer = peer_of(address)
        self._all[connection] = peer
        self._of[peer] += 1
        self._waiting.setdefault(peer, OrderedDict())[connection] = None
        if peer is not None and self._of[peer] > self._most_of_one:
            self._let_go(peer)
        elif len(self._all) > self.most:
            self._let_go(max(self._waiting, key=lambda one: len(self._waiting[one])))

    def serve(self, connection: Leaver) -> None:
        """Note that a request of a connection is being served."""
        if connection in self._all:
            self._forget_waiting(connection, self._all[connection])

    def wait(self, connection: Leaver) -> None:
        """Note that a connection waits for its next request."""
        if connection in self._all:
            self._waiting.setdefault(self._all[connection], OrderedDict())[connection] = None

    def leave(self, connection: Leaver) -> None:
        """Forget a connection; once more is nothing."""
        if connection not in self._all:
            return
        peer = self._all.pop(connection)
        self._of[peer] -= 1
        if not self._of[peer]:
            del self._of[peer]
        self._forget_waiting(connection, peer)

    def _forget_waiting(self, connection: Leaver, peer: Peer) -> None:
        waiting = self._waiting.get(peer, OrderedDict())
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(peer, None)

    def _let_go(self, peer: Peer) -> None:
        longest = next(iter(self._waiting[peer]))
        self.leave(longest)
        longest.make_room()
        self._ended += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_PAUSE_S:
            _logger.warning(
                "too many connections: %d are kept, %d of one address; ended for others: %d",
                self.most,
                max(self._of.values(), default=0),
                self._ended,
            )
            self._logged_at, self._ended = now, 0


_crowds: WeakKeyDictionary[Any, Crowd] = WeakKeyDictionary()


def crowd_of(server: object, share: float, most: int) -> Crowd:
    """Return the crowd of a server; the first call says how large it may be.

    Args:
        server: What its connections have in common.
        share: The part of this process's descriptors that connections may take; the others are for
            what they ask for.
        most: The same as a number: each one takes memory.
    """
    crowd = _crowds.get(server)
    if crowd is None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        crowd = _crowds[server] = Crowd(max(1, min(most, int(descriptors * share))))
    return crowd


def peer_of(address: Any) -> Peer:
    """Return what counts as one peer: an address, or a site of IPv6, where they are for free."""
    if not isinstance(address, tuple):
        return None
    ip = ip_address(str(address[0]).partition("%")[0])
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip.is_loopback:
        return None
    if isinstance(ip, IPv6Address):
        return f"{int(ip) >> _IPV6_BITS_OF_A_SITE:x}"
    return str(ip)
