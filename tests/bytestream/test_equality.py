"""Generated inputs: native and python agree, and both keep the laws of their operation."""

from __future__ import annotations

import base64
import hashlib
import itertools
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given
from tests.support.bytestream import ALPHABET, outcome

from agent_sandbox.errors import SizeLimitError

NEARLY = ALPHABET + "====" + "-_ \n\0éŁ\udc80\U0001f600"

texts = st.one_of(
    st.text(alphabet=ALPHABET + "=", max_size=200),
    st.text(alphabet=NEARLY, max_size=200),
    st.text(max_size=60),
    st.binary(max_size=300).map(lambda raw: base64.b64encode(raw).decode()),
)
caps = st.one_of(st.none(), st.integers(0, 250), st.integers(-2, 2**65))
kinds = st.sampled_from([bytes, bytearray, memoryview])


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A long valid text with a few symbols changed, removed or put in."""
    text = base64.b64encode(draw(st.binary(max_size=40)) * draw(st.integers(1, 400))).decode()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 2))
        text = text[:place] + draw(st.text(alphabet=NEARLY, max_size=2)) + text[place + cut :]
    return text


@given(text=st.one_of(texts, damaged()), cap=caps)
@example(text="QQ=Q", cap=None)
@example(text="QUJD====", cap=4)
def test_decoding_text_agrees(cores: list[ModuleType], text: str, cap: Any) -> None:
    results = [outcome(core.b64decode, text, max_bytes=cap) for core in cores]
    assert results[0] == results[-1]
    hashed = [outcome(core.b64decode_sha256, text, max_bytes=cap) for core in cores]
    assert hashed[0] == hashed[-1]
    kind, value, *_ = results[0]
    if kind is bytes:
        assert base64.b64encode(value).decode() == text  # canonical: one text for one value
        assert hashed[0][1] == (value, hashlib.sha256(value).hexdigest())
    else:
        assert hashed[0] == results[0]


@given(
    text=st.one_of(st.binary(max_size=120), damaged().map(lambda t: t.encode("utf-8", "replace"))),
    kind=kinds,
    cap=caps,
)
def test_decoding_bytes_agrees(cores: list[ModuleType], text: bytes, kind: Any, cap: Any) -> None:
    results = [outcome(core.b64decode, kind(text), max_bytes=cap) for core in cores]
    assert results[0] == results[-1]
    as_text = outcome(cores[0].b64decode, text.decode("latin-1"), max_bytes=cap)
    assert as_text == results[0]


@given(raw=st.binary(max_size=5000), kind=kinds)
def test_decode_of_encode_is_identity(core: ModuleType, raw: bytes, kind: Any) -> None:
    text = core.b64encode(kind(raw))
    assert text == base64.b64encode(raw).decode()
    assert core.b64encode_sha256(kind(raw)) == (text, hashlib.sha256(raw).hexdigest())
    assert core.b64decode(text, max_bytes=len(raw)) == raw


@given(chunks=st.lists(st.binary(max_size=300), max_size=12), kind=kinds)
def test_any_split_hashes_like_the_whole(core: ModuleType, chunks: list[bytes], kind: Any) -> None:
    running = core.Sha256()
    for chunk in chunks:
        running.update(kind(chunk))
    assert running.digest() == hashlib.sha256(b"".join(chunks)).digest()


@given(
    chunks=st.lists(st.one_of(st.binary(max_size=40), st.just("no bytes")), max_size=10),
    limit=st.integers(0, 150),
    sha256=st.booleans(),
    kind=kinds,
    finish_at=st.integers(0, 12),
)
def test_any_course_of_an_accumulator_agrees(
    cores: list[ModuleType],
    chunks: list[Any],
    limit: int,
    sha256: bool,
    kind: Any,
    finish_at: int,
) -> None:
    def course(core: ModuleType) -> list[Any]:
        capped = core.CappedBytes(limit, sha256=sha256)
        seen = []
        for step, chunk in enumerate(chunks):
            given_chunk = kind(chunk) if isinstance(chunk, bytes) else chunk
            seen.append(outcome(capped.append, given_chunk))
            seen.append(outcome(len, capped))
            seen.append(outcome(capped.hexdigest))
            if step == finish_at:
                seen.append(outcome(capped.finish))
        return [*seen, outcome(capped.finish), outcome(capped.finish), outcome(capped.hexdigest)]

    courses = [course(core) for core in cores]
    assert courses[0] == courses[-1]


@given(whole=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400)), slack=st.integers(-3, 3))
def test_any_split_is_the_whole_or_over_the_limit(
    core: ModuleType, whole: bytes, cuts: list[int], slack: int
) -> None:
    limit = max(0, len(whole) + slack)
    capped = core.CappedBytes(limit, sha256=True)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    try:
        for start, end in itertools.pairwise(edges):
            capped.append(whole[start:end])
    except SizeLimitError as error:
        assert len(whole) > limit  # both outcomes are right
        assert error.limit == limit  # noqa: PT017  # as above
    else:
        assert len(whole) <= limit
        assert capped.finish() == whole
        assert capped.hexdigest() == hashlib.sha256(whole).hexdigest()
