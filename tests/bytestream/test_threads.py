"""Several threads on one object, and buffers that change while they are read."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, ModuleType

import pytest
from tests.bytestream.conftest import PURE, load

from agent_sandbox.errors import SizeLimitError

THREADS = 8


@pytest.fixture(autouse=True)
def no_deadlock() -> Iterator[None]:
    """Threads change places as often as they can; one that hangs ends the run with its stacks."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    sys.setswitchinterval(interval)


def together(work: Callable[[int], object]) -> list[object]:
    """Run `work` in eight threads that start at once, and return what each gave."""
    start = threading.Barrier(THREADS)

    def one(index: int) -> object:
        start.wait(10)
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


# Sizes on both sides of those from which on the native module lets other threads run.
@pytest.mark.parametrize("size", [100, 20_000, 300_000])
def test_appends_of_eight_threads_are_serialised(core: ModuleType, size: int) -> None:
    rounds = 10
    capped = core.CappedBytes(THREADS * rounds * size, sha256=True)

    def work(index: int) -> None:
        for _ in range(rounds):
            capped.append(bytes([index]) * size)
            len(capped)
            capped.hexdigest()

    together(work)
    digest = capped.hexdigest()
    whole = capped.finish()
    chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert sorted(chunks) == [bytes([i]) * size for i in range(THREADS) for _ in range(rounds)]
    assert digest == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("size", [100, 300_000])
def test_one_of_eight_threads_finishes_and_none_gets_half_a_chunk(
    core: ModuleType, size: int
) -> None:
    for _ in range(10):
        capped = core.CappedBytes(2**40)

        def work(index: int, capped: object = capped) -> object:
            try:
                for _ in range(3):
                    capped.append(bytes([index]) * size)  # type: ignore[attr-defined]  # CappedBytes
                return capped.finish()  # type: ignore[attr-defined]  # CappedBytes
            except ValueError as error:
                return str(error)

        results = together(work)
        wholes = [result for result in results if isinstance(result, bytes)]
        assert len(wholes) == 1
        assert results.count("finish() was called before") == THREADS - 1
        assert len(wholes[0]) % size == 0


def test_the_limit_holds_against_eight_threads(core: ModuleType) -> None:
    size = 50_000
    limit = 5 * size + 1
    capped = core.CappedBytes(limit)

    def work(index: int) -> int:
        try:
            capped.append(bytes([index]) * size)
        except SizeLimitError:
            return 0
        return 1

    assert sum(together(work)) == 5  # type: ignore[arg-type]  # all are int
    with pytest.raises(SizeLimitError):
        capped.finish()


@pytest.mark.parametrize("size", [64, 300_000])
def test_updates_of_eight_threads_are_serialised(core: ModuleType, size: int) -> None:
    running = core.Sha256()
    block = b"\x07" * size

    def work(_: int) -> None:
        for _ in range(10):
            running.update(block)
            running.copy().hexdigest()

    together(work)
    assert running.hexdigest() == hashlib.sha256(block * THREADS * 10).hexdigest()


def test_what_is_hashed_is_a_snapshot_of_a_changing_bytearray(core: ModuleType) -> None:
    # 4 MiB of one value or of the other: a result that mixes them was read while it changed.
    size = 4 << 20
    values = [bytes([value]) * size for value in (0, 1)]
    good = {hashlib.sha256(value).hexdigest() for value in values}
    shared = bytearray(values[0])
    stop = threading.Event()

    def change() -> None:
        turn = 0
        while not stop.is_set():
            turn ^= 1
            shared[:] = values[turn]  # one step under the interpreter's lock

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(8):
            running = core.Sha256()
            running.update(shared)
            assert running.hexdigest() in good
            text, digest = core.b64encode_sha256(shared)
            assert digest in good
            assert core.b64decode_sha256(text)[1] == digest
            capped = core.CappedBytes(size, sha256=True)
            capped.append(memoryview(shared))
            assert capped.hexdigest() in good
            assert hashlib.sha256(capped.finish()).hexdigest() == capped.hexdigest()
    finally:
        stop.set()
        changer.join(10)


def test_a_bytearray_that_others_resize_is_copied_or_refused(core: ModuleType) -> None:
    shared = bytearray(1 << 20)
    stop = threading.Event()

    def resize() -> None:
        while not stop.is_set():
            try:
                shared.extend(bytes(1 << 20))
                del shared[1 << 20 :]
            except BufferError:  # while it is exported
                continue

    changer = threading.Thread(target=resize)
    changer.start()
    try:
        for _ in range(50):
            assert len(core.b64encode(shared)) in (1_398_104, 2_796_204)
            capped = core.CappedBytes(2 << 20)
            capped.append(shared)
            assert len(capped.finish()) in (1 << 20, 2 << 20)
    finally:
        stop.set()
        changer.join(10)


def test_a_signal_handler_that_appends_too_neither_hangs_nor_corrupts(core: ModuleType) -> None:
    capped = core.CappedBytes(2**40, sha256=True)
    refused = []

    def handler(signum: int, frame: FrameType | None) -> None:
        try:
            capped.append(b"s")
        except RuntimeError as error:
            refused.append(str(error))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for _ in range(3000):
            capped.append(b"m" * 1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    digest = capped.hexdigest()
    whole = capped.finish()
    assert whole.count(b"m") == 3_000_000
    assert set(refused) <= {"CappedBytes is in use by an outer call of the same thread"}
    assert digest == hashlib.sha256(whole).hexdigest()


# The standard library's base64 and BytesIO keep the lock: only hashing is common to both.
@pytest.mark.parametrize(
    ("implementation", "work"),
    [
        ("python", "hash"),
        *([] if PURE else [("native", "hash"), ("native", "decode"), ("native", "append")]),
    ],
)
def test_other_threads_run_while_much_is_done(implementation: str, work: str) -> None:
    core = load(implementation)
    raw = os.urandom(16 << 20)
    text = core.b64encode(raw)
    ready, go, ran = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        ready.set()
        go.wait(30)
        ran.set()

    thread = threading.Thread(target=other)
    # From here on a thread runs until it waits for something or gives the lock away itself.
    sys.setswitchinterval(1000)
    thread.start()
    assert ready.wait(30)
    go.set()
    for _ in range(100):
        if work == "hash":
            core.Sha256().update(raw)
        elif work == "decode":
            core.b64decode(text)
        else:
            core.CappedBytes(len(raw)).append(raw)
        if ran.is_set():
            break
    assert ran.is_set()
    thread.join(30)
