"""How many descriptors a server process may have."""

from __future__ import annotations

import resource

MOST = 65_536


def raise_limit() -> None:
    """Use what the system allows: a connection, a sandbox, a transfer take one to three each.

    It counts for the whole process and for the programs it starts, so only a process of ours does
    it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
