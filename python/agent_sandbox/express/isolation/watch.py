"""The watch over a sandbox's disk, which no quota of the kernel holds for an ordinary user."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

from agent_sandbox.express.isolation.sandbox import RunningSandbox
from agent_sandbox.express.isolation.usage import Usage, maps_removed_files, measure_usage

HOST_RESERVE_BYTES = 1_073_741_824
"""What stays free on the host's disk: below it, every sandbox that grows is stopped."""

_SHARE = 20  # a walk may take a twentieth of the time


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at once: the sandbox's files, and whether the host has little room.

    Attributes:
        hides: With little room, whether the sandbox maps removed files, whose size nobody is told.
    """

    usage: Usage
    tight: bool
    hides: bool


def _look(root_fd: int, *, stop_bytes: int, stop_files: int, reserve_bytes: int) -> _Look:
    usage = measure_usage(root_fd, stop_bytes=stop_bytes, stop_files=stop_files)
    disk = os.fstatvfs(root_fd)
    tight = disk.f_bavail * disk.f_frsize < reserve_bytes
    return _Look(usage, tight, hides=tight and maps_removed_files(root_fd))


async def watch_disk(
    sandbox: RunningSandbox,
    *,
    interval_s: float = 1.0,
    reserve_bytes: int = HOST_RESERVE_BYTES,
) -> None:
    """Kill the commands of a sandbox that grows past its disk limit, until the sandbox ends.

    Each time the directory holds more than `disk_bytes` or `files`, and more than at the look
    before, every command in it is killed; what then only deletes is left alone. Between two
    looks a command can write past the bound: `file_bytes` and the reserve bound the rest. Who maps
    removed files counts as growing where the reserve is touched.

    Args:
        sandbox: A running one.
        interval_s: Shortest time between two looks; longer where a look takes long.
        reserve_bytes: Free space of the host that no sandbox may eat into.
    """
    loop = asyncio.get_running_loop()
    limits = sandbox.config.limits
    root_fd = os.dup(sandbox.root_fd)  # the sandbox may close its own while a thread walks
    before: tuple[int, int] | None = None
    look: asyncio.Task[_Look] | None = None
    try:
        while not sandbox.ended.is_set():
            began = loop.time()
            look = asyncio.create_task(
                asyncio.to_thread(
                    _look,
                    root_fd,
                    # Past the bound by one growth step, so that growing still shows.
                    stop_bytes=max(limits.disk_bytes, before[0] if before else 0),
                    stop_files=max(limits.files, before[1] if before else 0),
                    reserve_bytes=reserve_bytes,
                )
            )
            seen = await asyncio.shield(look)  # a thread cannot be cancelled
            now = (seen.usage.allocated_bytes, seen.usage.files)
            over = now[0] > limits.disk_bytes or now[1] > limits.files or seen.tight
            if before and over and (now[0] > before[0] or now[1] > before[1] or seen.hides):
                sandbox.kill_all()
            before = now
            pause = max(interval_s, (loop.time() - began) * _SHARE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await sandbox.ended.wait()
    finally:
        if look is not None and not look.done():
            look.add_done_callback(lambda _: os.close(root_fd))
        else:
            os.close(root_fd)
