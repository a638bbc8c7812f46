"""A service that nobody started for himself alone: when it has no sandbox and no user, it ends."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable

_LOOK_EVERY_S = 0.5
_GRACE_S = 5.0
"""Time for whom started it to make the first sandbox."""


async def wait_until_unused(is_empty: Callable[[], bool], users_fd: int) -> None:
    """Return when there is no sandbox and nobody uses the service; then nobody can begin to.

    Args:
        is_empty: Tells whether there is no sandbox.
        users_fd: A file that every user holds a shared flock(2) on. It is locked alone on return,
            and so it must stay until the process has ended.
    """
    until = time.monotonic() + _GRACE_S
    had_some = False
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        had_some = had_some or not is_empty()
        if is_empty() and (had_some or time.monotonic() > until):
            try:
                fcntl.flock(users_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # somebody is about to make a sandbox, or looks whether there is one
            else:
                return
