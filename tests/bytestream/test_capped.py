from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from agent_sandbox.errors import SizeLimitError


class Bytes(bytes):
    """A subclass, which is never handed out."""


def refuses(work: Any, limit: int) -> None:
    with pytest.raises(SizeLimitError) as caught:
        work()
    assert caught.value.limit == limit
    assert str(caught.value) == SizeLimitError.text


def is_over(capped: Any, limit: int) -> None:
    """Every later call fails the same way, whatever it is given."""
    refuses(lambda: capped.append(b"x"), limit)
    refuses(lambda: capped.append(b""), limit)
    refuses(lambda: capped.append("not even bytes"), limit)
    refuses(lambda: len(capped), limit)
    refuses(capped.finish, limit)
    refuses(capped.hexdigest, limit)


def feed(capped: Any, chunks: list[bytes]) -> None:
    for chunk in chunks:
        capped.append(chunk)


@pytest.mark.parametrize("chunks", [[], [b""], [b"", b""]])
def test_a_limit_of_zero_holds_nothing(core: ModuleType, chunks: list[bytes]) -> None:
    capped = core.CappedBytes(0)
    for chunk in chunks:
        capped.append(chunk)
    assert len(capped) == 0
    assert capped.finish() == b""


def test_a_limit_of_zero_refuses_one_byte(core: ModuleType) -> None:
    capped = core.CappedBytes(0)
    refuses(lambda: capped.append(b"x"), 0)
    is_over(capped, 0)


def test_the_limit_itself_is_reached_and_empty_chunks_still_fit(core: ModuleType) -> None:
    capped = core.CappedBytes(64)
    capped.append(bytes(63))
    capped.append(b"x")
    capped.append(b"")
    assert len(capped) == 64
    result = capped.finish()
    assert result == bytes(63) + b"x"
    assert type(result) is bytes


def test_one_byte_over_in_one_chunk_ends_it(core: ModuleType) -> None:
    capped = core.CappedBytes(64, sha256=True)
    refuses(lambda: capped.append(bytes(65)), 64)
    is_over(capped, 64)


def test_every_split_of_one_byte_too_many_ends_it(core: ModuleType) -> None:
    whole = bytes(range(65))
    for first, second in itertools.combinations_with_replacement(range(66), 2):
        chunks = [whole[:first], whole[first:second], whole[second:]]
        capped = core.CappedBytes(64)
        with pytest.raises(SizeLimitError):
            feed(capped, chunks)
        is_over(capped, 64)


def test_every_split_of_the_limit_gives_the_whole_and_its_digest(core: ModuleType) -> None:
    whole = os.urandom(64)
    for first, second in itertools.combinations_with_replacement(range(65), 2):
        capped = core.CappedBytes(64, sha256=True)
        for chunk in (whole[:first], whole[first:second], whole[second:]):
            capped.append(chunk)
        assert capped.finish() == whole
        assert capped.hexdigest() == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("limit", [2**63 - 1, 2**63, 2**64 - 1])
def test_huge_limits_reserve_nothing(core: ModuleType, limit: int) -> None:
    tracemalloc.start()
    try:
        capped = core.CappedBytes(limit)
        capped.append(b"abc")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert capped.finish() == b"abc"


@pytest.mark.parametrize("size", [1, 2, 1000, 16_384, 65_536, 1 << 20, (1 << 20) + 1, 5_000_000])
@pytest.mark.parametrize("step", [1000, 16_384, 65_536, 1 << 20])
def test_any_size_in_any_steps_comes_back(core: ModuleType, size: int, step: int) -> None:
    whole = os.urandom(size)
    for limit in (size, size + 1, 2**63):
        capped = core.CappedBytes(limit, sha256=True)
        for start in range(0, size, step):
            capped.append(whole[start : start + step])
        assert len(capped) == size
        assert capped.hexdigest() == hashlib.sha256(whole).hexdigest()
        result = capped.finish()
        assert result == whole
        assert hash(result) == hash(whole)


@pytest.mark.parametrize("sha256", [False, True])
@pytest.mark.parametrize(
    "kinds", [(bytes,), (bytes, bytearray), (bytearray, bytes), (Bytes, bytes)]
)
@pytest.mark.parametrize("step", [1, 30_000, 65_536, 300_000])
def test_whatever_is_kept_or_copied_comes_back_in_order(
    core: ModuleType, kinds: tuple[type[bytes | bytearray], ...], step: int, *, sha256: bool
) -> None:
    size = min(20 * step, 700_000)
    whole = random.Random(step).randbytes(size)  # noqa: S311 - no secret
    for limit in (size, 2**64 - 1):
        capped = core.CappedBytes(limit, sha256=sha256)
        for number, start in enumerate(range(0, size, step)):
            capped.append(kinds[number % len(kinds)](whole[start : start + step]))
            assert len(capped) == min(start + step, size)
        if sha256:
            assert capped.hexdigest() == hashlib.sha256(whole).hexdigest()
        result = capped.finish()
        assert type(result) is bytes
        assert result == whole
    capped = core.CappedBytes(size - 1, sha256=sha256)
    chunks = [whole[start : start + step] for start in range(0, size, step)]
    refuses(lambda: feed(capped, chunks), size - 1)


def test_what_came_as_one_chunk_is_handed_out_as_plain_bytes(core: ModuleType) -> None:
    capped = core.CappedBytes(10)
    capped.append(Bytes(b"abc"))
    result = capped.finish()
    assert (type(result), result) == (bytes, b"abc")


@pytest.mark.parametrize("size", [1 << 20, 16 << 20])
def test_the_peak_is_little_more_than_the_payload(core: ModuleType, size: int) -> None:
    chunk = bytes(65_536)
    core.CappedBytes(size).append(chunk)
    tracemalloc.start()
    try:
        capped = core.CappedBytes(size)
        for _ in range(size // len(chunk)):
            capped.append(chunk)
        whole = capped.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(whole) == size
    # io.BytesIO, on which the pure form stands, reserves an eighth ahead.
    assert peak < size * (1.02 if core.__name__.endswith("_native") else 1.15)


def test_the_memory_is_given_back_at_the_overflow(core: ModuleType) -> None:
    chunk = bytes(1_500_000)
    tracemalloc.start()
    try:
        capped = core.CappedBytes(2_000_000)
        capped.append(chunk)
        assert tracemalloc.get_traced_memory()[0] > 1_400_000
        refuses(lambda: capped.append(chunk), 2_000_000)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_finish_works_once_and_the_rest_is_still_known(core: ModuleType) -> None:
    capped = core.CappedBytes(3, sha256=True)
    capped.append(b"abc")
    assert capped.finish() == b"abc"
    for work in (capped.finish, lambda: capped.append(b""), lambda: capped.append(b"too much")):
        with pytest.raises(ValueError, match=r"^finish\(\) was called before$"):
            work()
    assert len(capped) == 3
    assert capped.hexdigest() == hashlib.sha256(b"abc").hexdigest()


def test_what_was_handed_out_never_changes(core: ModuleType) -> None:
    first = core.CappedBytes(1 << 20)
    first.append(bytes(1 << 20))
    whole = first.finish()
    second = core.CappedBytes(1 << 20)
    second.append(b"\xff" * (1 << 20))
    assert whole == bytes(1 << 20)
    assert second.finish() == b"\xff" * (1 << 20)


def test_a_digest_must_be_asked_for(core: ModuleType) -> None:
    capped = core.CappedBytes(3)
    with pytest.raises(ValueError, match="the digest needs CappedBytes"):
        capped.hexdigest()
    capped.append(b"abc")
    assert capped.finish() == b"abc"


def test_a_bytearray_that_changes_later_changes_nothing_stored(core: ModuleType) -> None:
    chunk = bytearray(b"abc")
    view = memoryview(chunk)
    capped = core.CappedBytes(6, sha256=True)
    capped.append(chunk)
    capped.append(view)
    chunk[:] = b"xyz"
    del view
    chunk.clear()
    assert capped.finish() == b"abcabc"
    assert capped.hexdigest() == hashlib.sha256(b"abcabc").hexdigest()


def test_a_wrong_chunk_costs_nothing(core: ModuleType) -> None:
    capped = core.CappedBytes(3)
    capped.append(b"ab")
    for wrong in ("c", 1, None, [99], memoryview(b"abcd")[::2], memoryview(bytes(8)).cast("I")):
        with pytest.raises(TypeError):
            capped.append(wrong)
    capped.append(b"c")
    assert capped.finish() == b"abc"


def test_a_handler_that_comes_back_to_an_ended_accumulator_gets_its_error(core: ModuleType) -> None:
    # Making the exception runs Python code; a finaliser in it must not wait for its own thread.
    ended = core.CappedBytes(3)
    refuses(lambda: ended.append(b"four"), 3)
    came_back: list[type[BaseException]] = []

    class Finaliser:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                ended.append(b"x")
            except Exception as error:  # noqa: BLE001 - whichever it is, it is noted
                came_back.append(type(error))

    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Finaliser()
            refuses(lambda: ended.append(b""), 3)
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert len(came_back) == 200
    assert set(came_back) <= {SizeLimitError, RuntimeError}


def test_an_exception_between_two_steps_keeps_length_bytes_and_digest_together(
    core: ModuleType,
) -> None:
    # Signal handlers run where a call begins or has returned, and so does a profile function.
    interrupted = 0
    for step in range(40):
        capped = core.CappedBytes(10, sha256=True)
        capped.append(b"ab")
        sys.setprofile(Interruption(step))
        try:
            capped.append(b"01234567")
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
        length = len(capped)
        whole = capped.finish()
        assert whole in (b"ab", b"ab01234567")
        assert length == len(capped) == len(whole)
        assert capped.hexdigest() == hashlib.sha256(whole).hexdigest()
    assert interrupted > 8 or core.__name__.endswith("_native")


class Interruption:
    """A profile function that raises KeyboardInterrupt at one step within the pure core."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if Path(frame.f_code.co_filename).parent.name == "_python":
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def test_no_memory_for_a_copy_is_a_memory_error_and_ends_the_accumulator(core: ModuleType) -> None:
    program = """
import resource, sys
from agent_sandbox.errors import SizeLimitError
import importlib
core = importlib.import_module(sys.argv[1])
data = bytearray(64 << 20)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (32 << 20),) * 2)
capped = core.CappedBytes(1 << 40)
capped.append(b"held")
calls = [
    lambda: core.b64decode(data), lambda: core.b64encode(data), lambda: core.b64encode_sha256(data),
    lambda: core.b64decode_sha256(memoryview(data)), lambda: core.Sha256().update(data),
    lambda: capped.append(data), lambda: capped.append(b"x"), capped.finish, lambda: len(capped),
]
for call in calls:
    try:
        call()
    except MemoryError:
        print("MemoryError")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, core.__name__], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, ["MemoryError"] * 9)
