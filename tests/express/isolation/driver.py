"""The service's side in a process of its own, under the user that the test asks for.

Run as a script with one JSON argument; then one JSON request a line on standard input, one JSON
answer a line on standard output. It uses the standard library and the isolation part alone, so
that an interpreter without our dependencies, which a plain user may execute, can run it.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - asyncio imports it late, when nothing can be
import json
import os
import resource
import sys
import types
from typing import Any

SETTINGS = json.loads(sys.argv[1])
for _name, _path in SETTINGS["stand_ins"]:
    _module = types.ModuleType(_name)
    _module.__path__ = [_path]
    sys.modules[_name] = _module

from agent_sandbox.express.isolation.config import SandboxConfig  # noqa: E402
from agent_sandbox.express.isolation.limits import Limits  # noqa: E402
from agent_sandbox.express.isolation.process import Process  # noqa: E402
from agent_sandbox.express.isolation.rootfs import prepare_directory  # noqa: E402
from agent_sandbox.express.isolation.sandbox import RunningSandbox  # noqa: E402
from agent_sandbox.express.isolation.spawner import Spawner  # noqa: E402


def host_pid(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="utf-8") as info:
        return next(int(line.split()[1]) for line in info if line.startswith("Pid:"))


async def read_all(fd: int) -> str:
    def read() -> bytes:
        with open(fd, "rb", closefd=True) as stream:
            return stream.read()

    return (await asyncio.to_thread(read)).decode(errors="replace")


class Driver:
    def __init__(self, spawner: Spawner) -> None:
        self.spawner = spawner
        self.sandboxes: dict[str, RunningSandbox] = {}
        self.processes: list[Process] = []

    async def start(self, name: str, directory: str, **options: Any) -> dict[str, Any]:
        limits = Limits(**options.pop("limits", {}))
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        prepare_directory(fd)
        config = SandboxConfig(fd, limits=limits, **options)
        try:
            self.sandboxes[name] = await self.spawner.start(config)
        finally:
            os.close(fd)
        return {}

    async def run(self, name: str, argv: list[str], **options: Any) -> dict[str, Any]:
        process = await self.sandboxes[name].spawn(argv, **options)
        try:
            async with asyncio.timeout(40):
                out, err = await asyncio.gather(
                    read_all(process.detach("stdout")), read_all(process.detach("stderr"))
                )
                code = await process.wait()
        finally:
            process.close()
        return {"code": code, "out": out, "err": err, "pid": process.pid}

    async def background(self, name: str, argv: list[str]) -> dict[str, Any]:
        process = await self.sandboxes[name].spawn(argv)
        self.processes.append(process)
        first = await asyncio.to_thread(os.read, process.stdout, 100)
        return {
            "index": len(self.processes) - 1,
            "pid": process.pid,
            "host_pid": host_pid(process.pidfd),
            "first": first.decode(),
        }

    async def finish(self, index: int) -> dict[str, Any]:
        process = self.processes[index]
        async with asyncio.timeout(40):
            out = await read_all(process.detach("stdout"))
            return {"code": await process.wait(), "out": out}

    async def kill_tree(self, index: int) -> dict[str, Any]:
        self.processes[index].kill_tree()
        async with asyncio.timeout(10):
            return {"code": await self.processes[index].wait()}

    async def kill_all(self, name: str) -> dict[str, Any]:
        self.sandboxes[name].kill_all()
        return {}

    async def write(self, name: str, path: str, text: str) -> dict[str, Any]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = os.open(path.lstrip("/"), flags, 0o644, dir_fd=self.sandboxes[name].root_fd)
        os.write(fd, text.encode())
        os.close(fd)
        return {}

    async def read(self, name: str, path: str) -> dict[str, Any]:
        fd = os.open(path.lstrip("/"), os.O_RDONLY, dir_fd=self.sandboxes[name].root_fd)
        text = os.read(fd, 65_536)
        os.close(fd)
        return {"text": text.decode()}

    async def stop(self, name: str) -> dict[str, Any]:
        await self.sandboxes.pop(name).stop()
        return {}

    async def let_fork(self, allowed: bool) -> dict[str, Any]:
        zygote = self.spawner._process.pid
        hard = resource.prlimit(zygote, resource.RLIMIT_NPROC)[1]
        resource.prlimit(zygote, resource.RLIMIT_NPROC, (hard if allowed else 0, hard))
        return {}

    async def facts(self) -> dict[str, Any]:
        return {"uid": os.getuid(), "controllers": sorted(self.spawner.parents.controllers)}


async def main() -> None:
    user = SETTINGS["user"]
    spawner = Spawner.launch(user=user, use_cgroups=SETTINGS["use_cgroups"])
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    driver = Driver(spawner)
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        request = json.loads(line)
        try:
            answer = await getattr(driver, request.pop("op"))(**request)
        except Exception as error:  # noqa: BLE001 - the test judges it
            answer = {
                "error": type(error).__name__,
                **{key: str(value) for key, value in vars(error).items()},
            }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for sandbox in driver.sandboxes.values():
        await sandbox.stop()
    for process in driver.processes:
        process.close()
    await spawner.close()


asyncio.run(main())
