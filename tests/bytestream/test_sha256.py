from __future__ import annotations

import copy
import hashlib
import os
import pickle
from types import ModuleType

import pytest

A_DIGESTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    55: "9f4390f8",
    56: "b35439a4",
    63: "7d3e74a0",
    64: "ffe054fe",
    65: "635361c4",
    10**6: "cdc76e5c9914fb92",
}


@pytest.mark.parametrize("size", list(A_DIGESTS))
def test_a_message_of_as_has_its_known_digest(core: ModuleType, size: int) -> None:
    running = core.Sha256()
    running.update(b"a" * size)
    assert running.hexdigest().startswith(A_DIGESTS[size])
    assert running.digest().hex() == running.hexdigest()
    assert len(running.digest()) == 32


def test_known_messages_have_their_known_digests(core: ModuleType) -> None:
    for message, digest in ((b"abc", "ba7816bf8f01cfea"), (bytes(1 << 20), "30e14955ebf13522")):
        running = core.Sha256()
        running.update(message)
        assert running.hexdigest().startswith(digest)
        assert core.b64encode_sha256(message)[1] == running.hexdigest()


def test_any_chunking_gives_the_digest_of_the_whole(core: ModuleType) -> None:
    message = os.urandom(70_000)
    expected = hashlib.sha256(message).hexdigest()
    for step in (1, 63, 64, 65, 4096, 16_384, 65_536, 70_000):
        running = core.Sha256()
        for start in range(0, len(message), step):
            running.update(message[start : start + step])
            running.update(b"")
        assert running.hexdigest() == expected


def test_a_digest_in_between_disturbs_nothing(core: ModuleType) -> None:
    running = core.Sha256()
    running.update(b"a")
    assert running.hexdigest() == hashlib.sha256(b"a").hexdigest()
    running.update(b"bc")
    assert running.digest() == hashlib.sha256(b"abc").digest()
    assert running.digest() == running.digest()


def test_copies_that_diverge_are_independent(core: ModuleType) -> None:
    first = core.Sha256()
    first.update(b"ab")
    second = first.copy()
    assert type(second) is type(first)
    first.update(b"c")
    second.update(b"x")
    assert first.hexdigest() == hashlib.sha256(b"abc").hexdigest()
    assert second.hexdigest() == hashlib.sha256(b"abx").hexdigest()


def test_a_hash_is_neither_pickled_nor_shared_by_copy_module(core: ModuleType) -> None:
    for work in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot pickle 'Sha256' object"):
            work(core.Sha256())
        with pytest.raises(TypeError, match="cannot pickle 'CappedBytes' object"):
            work(core.CappedBytes(1))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_buffers_are_hashed_too(core: ModuleType, kind: type) -> None:
    running = core.Sha256()
    running.update(kind(b"abc"))
    assert running.hexdigest() == hashlib.sha256(b"abc").hexdigest()


def test_classes_are_final_and_named_after_the_public_module(core: ModuleType) -> None:
    for cls in (core.Sha256, core.CappedBytes):
        assert cls.__module__ == "agent_sandbox.bytestream"
        text = f"type 'agent_sandbox.bytestream.{cls.__name__}' is not an acceptable base type"
        with pytest.raises(TypeError, match=text):
            type("Sub", (cls,), {})
