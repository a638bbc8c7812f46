"""Which names and addresses are this machine, for everyone who decides by that."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine by its name or address, without a look-up.

    `localhost` and what ends in it (RFC 6761 section 6.3) and the loopback addresses, in brackets
    or with a zone too. Every other name counts as one that others reach.
    """
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
