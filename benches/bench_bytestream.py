"""The byte core against the fastest Python peers, and native against pure Python."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import pybase64
import pytest
from benches._harness import Row, interleaved
from pytest_benchmark.fixture import BenchmarkFixture

KIB, MIB = 1 << 10, 1 << 20
CHUNK = 64 * KIB
SIZES = [(2, "2 B"), (64 * KIB, "64 KiB"), (MIB, "1 MiB"), (16 * MIB, "16 MiB")]


def core(implementation: str) -> ModuleType:
    name = {"native": "_native", "python": "_python"}[implementation]
    return importlib.import_module(f"agent_sandbox.bytestream.{name}")


def _effort(size: int) -> tuple[int, int]:
    """Rounds and repeats for work of this size."""
    if size <= KIB:
        return 60, 5000
    if size <= 64 * KIB:
        return 200, 20
    return (200, 1) if size <= MIB else (40, 1)


def rows() -> Iterator[Row]:
    native = core("native")
    for size, name in SIZES:
        rounds, inner = _effort(size)
        raw = os.urandom(size)
        text = pybase64.b64encode_as_string(raw)
        ratio = interleaved(
            partial(native.b64decode, text),
            partial(pybase64.b64decode, text, validate=True),
            rounds=rounds,
            inner=inner,
        )
        bound = 0.5 if size == 2 else 1.1
        yield Row(f"decode a str to {name}", ratio, bound, "x pybase64 validate=True")
    for size, name in SIZES[1:]:
        rounds, inner = _effort(size)
        raw = os.urandom(size)
        ratio = interleaved(
            partial(native.b64encode, raw),
            partial(pybase64.b64encode_as_string, raw),
            rounds=rounds,
            inner=inner,
        )
        yield Row(f"encode {name} to str", ratio, 1.1, "x pybase64")
    yield from _hash_rows(native)
    yield from _capped_rows(native)


def _hash_rows(native: ModuleType) -> Iterator[Row]:
    chunks = [os.urandom(CHUNK) for _ in range(16 * MIB // CHUNK)]

    def hashed(make: Callable[[], object]) -> Callable[[], str]:
        def work() -> str:
            running = make()
            for chunk in chunks:
                running.update(chunk)  # type: ignore[attr-defined]  # both classes have it
            digest: str = running.hexdigest()  # type: ignore[attr-defined]  # as above
            return digest

        return work

    ratio = interleaved(hashed(native.Sha256), hashed(hashlib.sha256), rounds=40)
    yield Row("Sha256, 64 KiB updates, 16 MiB", ratio, 1.03, "x hashlib.sha256")

    raw = os.urandom(MIB)
    text = pybase64.b64encode_as_string(raw)
    ratio = interleaved(
        lambda: native.b64decode_sha256(text),
        lambda: hashlib.sha256(raw).hexdigest(),
        rounds=200,
    )
    yield Row("decode + sha256, 1 MiB", ratio, 1.08, "x hashlib.sha256 alone")


def _capped_rows(native: ModuleType) -> Iterator[Row]:
    small = [os.urandom(CHUNK), os.urandom(36_864)]  # 100 KiB, as a small file comes in

    def bounded() -> bytes:
        capped = native.CappedBytes(MIB)
        for chunk in small:
            capped.append(chunk)
        whole: bytes = capped.finish()
        return whole

    ratio = interleaved(bounded, lambda: b"".join(list(small)), rounds=300, inner=20)
    yield Row("CappedBytes, 100 KiB of at most 1 MiB: time", ratio, 1.5, "x list + join")
    for size, name in SIZES[2:]:
        chunks = [os.urandom(CHUNK) for _ in range(size // CHUNK)]

        def ours(limit: int, chunks: list[bytes] = chunks) -> bytes:
            capped = native.CappedBytes(limit)
            for chunk in chunks:
                capped.append(chunk)
            whole: bytes = capped.finish()
            return whole

        def peer(chunks: list[bytes] = chunks) -> bytes:
            collected = []
            for chunk in chunks:
                collected.append(chunk)  # noqa: PERF402  # what a reader of a stream does
            return b"".join(collected)

        rounds, inner = (300, 2) if size <= MIB else (60, 1)
        for limit, what in ((size, "limit = size"), (1 << 63, "no real limit")):
            ratio = interleaved(partial(ours, limit), peer, rounds=rounds, inner=inner)
            yield Row(f"CappedBytes, {name}, {what}: time", ratio, 1.1, "x list + join")
        for limit, what in ((size, "limit = size"), (1 << 63, "no real limit")):
            yield Row(
                f"CappedBytes, {name}, {what}: peak", _peak(size, limit), 1.1, "x the payload"
            )


_PEAK_PROGRAM = """
import sys
from agent_sandbox.bytestream._native import CappedBytes
from benches._harness import own_memory_bytes, reset_peak
size, limit = int(sys.argv[1]), int(sys.argv[2])
chunk = bytes(range(256)) * 256
CappedBytes(limit).append(chunk)
reset_peak()
before = own_memory_bytes("VmRSS")
capped = CappedBytes(limit)
for _ in range(size // len(chunk)):
    capped.append(chunk)
whole = capped.finish()
print((own_memory_bytes("VmHWM") - before) / size)
"""


def _peak(size: int, limit: int) -> float:
    """Resident memory at its peak, in payloads, in a process of its own."""
    # One chunk object serves for all, so that what grows is the accumulator alone.
    done = subprocess.run(
        [sys.executable, "-c", _PEAK_PROGRAM, str(size), str(limit)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return float(done.stdout)


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize(("size", "name"), SIZES)
def test_decode(benchmark: BenchmarkFixture, implementation: str, size: int, name: str) -> None:
    benchmark.group = f"decode {name}"
    benchmark(core(implementation).b64decode, pybase64.b64encode_as_string(os.urandom(size)))


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize(("size", "name"), SIZES)
def test_encode(benchmark: BenchmarkFixture, implementation: str, size: int, name: str) -> None:
    benchmark.group = f"encode {name}"
    benchmark(core(implementation).b64encode, os.urandom(size))


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize(("size", "name"), SIZES)
def test_sha256(benchmark: BenchmarkFixture, implementation: str, size: int, name: str) -> None:
    benchmark.group = f"sha256 {name}"
    raw, make = os.urandom(size), core(implementation).Sha256

    def work() -> str:
        running = make()
        running.update(raw)
        digest: str = running.hexdigest()
        return digest

    benchmark(work)


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize(("size", "name"), SIZES[1:])
def test_capped_bytes(
    benchmark: BenchmarkFixture, implementation: str, size: int, name: str
) -> None:
    benchmark.group = f"CappedBytes {name}"
    chunk, make = os.urandom(CHUNK), core(implementation).CappedBytes

    def work() -> bytes:
        capped = make(size)
        for _ in range(size // CHUNK):
            capped.append(chunk)
        whole: bytes = capped.finish()
        return whole

    benchmark(work)
