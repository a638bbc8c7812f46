"""The watch over a sandbox's disk, which no quota of the kernel holds for an ordinary user."""

from __future__ import annotations

import asyncio
import contextlib
import os

from agent_sandbox.express.isolation.sandbox import RunningSandbox
from agent_sandbox.express.isolation.usage import Usage, measure_usage

HOST_RESERVE_BYTES = 1_073_741_824
"""What stays free on the host's disk: below it, every sandbox that grows is stopped."""

_SHARE = 20  # a walk may take a twentieth of the time


async def watch_disk(
    sandbox: RunningSandbox,
    *,
    interval_s: float = 1.0,
    reserve_bytes: int = HOST_RESERVE_BYTES,
) -> None:
    """Kill the commands of a sandbox that grows past its disk limit, until the sandbox ends.

    Each time the directory holds more than `disk_bytes` or `files`, and more than at the look
    before, every command in it is killed; what then only deletes is left alone. Between two
    looks a command can write past the bound: `file_bytes` and the reserve bound the rest.

    Args:
        sandbox: A running one.
        interval_s: Shortest time between two looks; longer where a look takes long.
        reserve_bytes: Free space of the host that no sandbox may eat into.
    """
    loop = asyncio.get_running_loop()
    limits = sandbox.config.limits
    root_fd = os.dup(sandbox.root_fd)  # the sandbox may close its own while a thread walks
    before: tuple[int, int] | None = None
    walk: asyncio.Task[Usage] | None = None
    try:
        while not sandbox.ended.is_set():
            began = loop.time()
            walk = asyncio.create_task(
                asyncio.to_thread(
                    measure_usage,
                    root_fd,
                    # Past the bound by one growth step, so that growing still shows.
                    stop_bytes=max(limits.disk_bytes, before[0] if before else 0),
                    stop_files=max(limits.files, before[1] if before else 0),
                )
            )
            usage = await asyncio.shield(walk)  # a thread cannot be cancelled
            now = (usage.allocated_bytes, usage.files)
            disk = os.fstatvfs(root_fd)
            tight = disk.f_bavail * disk.f_frsize < reserve_bytes
            over = now[0] > limits.disk_bytes or now[1] > limits.files or tight
            if over and before and (now[0] > before[0] or now[1] > before[1]):
                sandbox.kill_all()
            before = now
            pause = max(interval_s, (loop.time() - began) * _SHARE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await sandbox.ended.wait()
    finally:
        if walk is not None and not walk.done():
            walk.add_done_callback(lambda _: os.close(root_fd))
        else:
            os.close(root_fd)
