"""The bounded read against `.content` of the same client, in time and in memory.

The service is a raw unix socket in a process of its own, so that its work takes no time of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
from benches._harness import Row, interleaved, own_memory_bytes, reset_peak
from pytest_benchmark.fixture import BenchmarkFixture

from agent_sandbox import SandboxClient
from agent_sandbox.client._calls import Target
from agent_sandbox.client._http import async_client
from agent_sandbox.client.providers import Endpoint
from agent_sandbox.errors import FileSizeLimitError
from agent_sandbox.sync import SandboxClient as BlockingClient

MIB = 1 << 20
GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[1]


# --- The service ------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Answer `GET /files?path=/<bytes>` with so many bytes, and `/sent` with what went out last.

    `send` is counted by what it accepted, with the socket buffers that the kernel gives.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    sent = 0
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError):
            while head := connection.recv(65536):
                line = head.split(b"\r\n", 1)[0]
                if b"/connect" in line:
                    while not head.endswith(b"}"):  # its body may come on its own
                        head += connection.recv(65536)
                    body = b'{"templateID":"b","sandboxID":"bench","envdVersion":"0.6.4"}'
                elif b"sent" in line:
                    body = str(sent).encode()
                else:
                    sent = _send_body(
                        connection, int(line.replace(b"%2F", b"/").rsplit(b"/", 2)[1].split()[0])
                    )
                    continue
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                connection.sendall(body)
        connection.close()


_PIECE = bytes(range(256)) * 4096


def _send_body(connection: socket.socket, size: int) -> int:
    """Send a body and return how much the kernel took; stops when the client closes."""
    lying = size >= GIB  # chunked, so that no declared length can help the client
    sent = 0
    if lying:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    else:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    try:
        left = size
        while left:
            piece = memoryview(_PIECE)[: min(left, len(_PIECE))]
            left -= len(piece)
            if lying:
                connection.sendall(b"%x\r\n" % len(piece))
            while piece:
                count = connection.send(piece)
                sent += count
                piece = piece[count:]
            if lying:
                connection.sendall(b"\r\n")
        if lying:
            connection.sendall(b"0\r\n\r\n")
    except OSError:
        pass
    return sent


@contextlib.contextmanager
def service() -> Generator[str]:
    """Run `serve` in a process; gives the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        process = subprocess.Popen(
            [sys.executable, "-m", "benches.bench_bounded_read", "serve", path],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield path
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class _Unix:
    """A provider for the socket of the service."""

    streaming = True

    def __init__(self, path: str) -> None:
        self._endpoint = Endpoint(Target("http://localhost", {}), uds=path)

    def ready(self) -> Endpoint:
        return self._endpoint

    def open(self) -> Endpoint:
        return self._endpoint


# --- Time -------------------------------------------------------------------------------------


@contextlib.contextmanager
def asynchronous(path: str, size: int) -> Generator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Give the async bounded read, and `.content` of the very same client."""
    loop = asyncio.new_event_loop()
    http = async_client(path)
    client = SandboxClient(provider=_Unix(path), http_client=http)
    files = loop.run_until_complete(client.connect("bench")).files
    url = f"http://localhost/files?path=%2F{size}"

    async def content() -> bytes:
        return (await http.get(url, headers={"accept-encoding": "identity"})).content

    def ours() -> bytes:
        return loop.run_until_complete(files.read_bytes(f"/{size}", max_bytes=size))

    yield ours, lambda: loop.run_until_complete(content())
    loop.run_until_complete(http.aclose())
    loop.run_until_complete(client.aclose())
    loop.close()


@contextlib.contextmanager
def blocking(
    path: str, size: int, http: httpx2.Client | None = None
) -> Generator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Give the blocking bounded read, and `.content` of the very same client."""
    with BlockingClient(provider=_Unix(path), http_client=http) as client:
        files = client.connect("bench").files
        same: Any = http or client._slot._made[-1]
        url = f"http://localhost/files?path=%2F{size}"
        yield (
            lambda: files.read_bytes(f"/{size}", max_bytes=size),
            lambda: same.get(url, headers={"accept-encoding": "identity"}).content,
        )
        if http is not None:
            http.close()


# --- Memory -----------------------------------------------------------------------------------


def _memory(path: str, size: int, limit: int | None) -> dict[str, int]:
    """Return how the peak of this process grew by one read.

    The receive buffers (256 KiB of asyncio, two copies of 64 KiB in h11; about 0.5 MiB, whatever
    the size) are warm: reads that are stopped at 256 KiB have filled them, and no payload of the
    measured size was ever held. Those bodies are chunked: a declared length over the bound is
    refused by the head alone, and would warm nothing.
    """
    loop = asyncio.new_event_loop()
    http = async_client(path)
    client = SandboxClient(provider=_Unix(path), http_client=http)
    files = loop.run_until_complete(client.connect("bench")).files
    for _ in range(5):
        with contextlib.suppress(FileSizeLimitError):
            loop.run_until_complete(files.read_bytes(f"/{GIB}", max_bytes=MIB // 4))
    before = own_memory_bytes("VmRSS")
    reset_peak()
    try:
        data = loop.run_until_complete(files.read_bytes(f"/{size}", max_bytes=limit))
        assert len(data) == size
    except FileSizeLimitError:
        assert limit is not None
        assert size > limit
    peak = own_memory_bytes("VmHWM")
    sent = int(loop.run_until_complete(files.read_bytes("/sent", max_bytes=20)))
    loop.run_until_complete(http.aclose())
    loop.run_until_complete(client.aclose())
    loop.close()
    return {"grown": peak - before, "sent": sent}


def _in_a_fresh_process(path: str, size: int, limit: int | None) -> dict[str, int]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benches.bench_bounded_read",
            "memory",
            path,
            str(size),
            json.dumps(limit),
        ],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    result: dict[str, int] = json.loads(done.stdout)
    return result


def _median_grown(path: str, size: int, limit: int | None) -> float:
    """Return the growth of the median of three processes: heaps differ by a chunk or two."""
    found = [_in_a_fresh_process(path, size, limit)["grown"] for _ in range(3)]
    return statistics.median(found)


# --- Rows -------------------------------------------------------------------------------------


def rows() -> Iterator[Row]:
    """Measure every bound of the bounded read."""
    for size, rounds in ((MIB, 400), (64 * MIB, 20)):
        name = f"{size // MIB} MiB"
        with service() as path:
            with asynchronous(path, size) as (ours, content):
                assert len(ours()) == size
                ratio = interleaved(ours, content, rounds=rounds)
            yield Row(f"bounded read, {name}, async", ratio, 1.05, "x .content")
        with service() as path:
            with blocking(path, size) as (ours, content):
                assert len(ours()) == size
                ratio = interleaved(ours, content, rounds=rounds)
            yield Row(f"bounded read, {name}, blocking", ratio, 1.05, "x .content")
        with service() as path:
            grown = _median_grown(path, size, size)
            yield Row(f"bounded read, {name}, peak memory", grown / size, 1.2, "x payload")
        with service() as path:
            grown = _median_grown(path, size, None)
            yield Row(f"unbounded read, {name}, peak memory", grown / size, 1.2, "x payload")
    with service() as path:
        over = _in_a_fresh_process(path, GIB, MIB)
        yield Row("1 GiB over a bound of 1 MiB, memory", over["grown"] / MIB, 4, "MiB")
        yield Row("1 GiB over a bound of 1 MiB, sent", over["sent"] / MIB, 3, "MiB")


def test_a_bounded_read_of_one_mib(benchmark: BenchmarkFixture) -> None:
    with service() as path, asynchronous(path, MIB) as (ours, _):
        benchmark(ours)


def test_the_content_of_one_mib(benchmark: BenchmarkFixture) -> None:
    with service() as path, asynchronous(path, MIB) as (_, content):
        benchmark(content)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[1] == "memory":
        print(json.dumps(_memory(sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))))
