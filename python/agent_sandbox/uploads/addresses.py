"""Which network addresses a server may fetch from on a stranger's word: public ones only."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments, with Teredo
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation (RFC 9637), which Python 3.11 does not know
    )
)
_REFUSED_V4 = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "192.88.99.0/24",  # 6to4 relays (RFC 7526)
        "168.63.129.16/32",  # a cloud's metadata and DNS service on a public address
    )
)


def is_public(text: str) -> bool:
    """Say whether an IP address is one that anybody on the internet means by it.

    False for private, loopback, link-local (cloud metadata), shared, documentation, multicast and
    reserved ranges, for text that is no address, for an address with a zone, and for IPv6 forms
    that carry an IPv4 address (mapped, 6to4, Teredo, NAT64), whatever they carry: a public host
    is reached by its plain address.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return (
            address.is_global
            and not address.is_multicast
            and not address.is_reserved
            and not any(address in block for block in _REFUSED_V4)
        )
    return (
        address in _GLOBAL_UNICAST
        and address.is_global
        and address.scope_id is None
        and not any(address in block for block in _REFUSED_V6)
    )
