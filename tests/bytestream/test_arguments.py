"""Arguments of every kind: the same error, with the same text, from every implementation."""

from __future__ import annotations

import array
import inspect
import mmap
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from tests.support.bytestream import outcome

from agent_sandbox import bytestream


class Str(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise AssertionError("a method of the caller ran")

    __str__ = __iter__ = __getitem__ = encode = __len__  # type: ignore[assignment]


class Bytes(bytes):
    def __len__(self) -> int:
        raise AssertionError("a method of the caller ran")

    __bytes__ = __iter__ = __getitem__ = __buffer__ = __len__  # type: ignore[assignment]


class Bytearray(bytearray):
    def __len__(self) -> int:
        raise AssertionError("a method of the caller ran")

    __bytes__ = __iter__ = __getitem__ = __buffer__ = __len__  # type: ignore[assignment]


class Int(int):
    def __index__(self) -> int:
        raise AssertionError("a method of the caller ran")

    __int__ = __lt__ = __ge__ = __index__  # type: ignore[assignment]


class Index:
    def __index__(self) -> int:
        return 4


class Liar:
    """Says that it is what it is not."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property  # type: ignore[misc]  # object lets it be assigned
    def __class__(self) -> Any:
        return self.kind


class Exporter:
    """From 3.12 on a buffer; a program that is called back while it is read."""

    def __init__(self, calls: list[int], act: Callable[[], object]) -> None:
        self.calls, self.act = calls, act

    def __buffer__(self, flags: int) -> memoryview:
        self.calls.append(flags)
        self.act()
        return memoryview(b"QUJD")


def released() -> memoryview:
    view = memoryview(b"QUJD")
    view.release()
    return view


DATA: dict[str, Callable[[], Any]] = {
    "str": lambda: "QUJD",
    "bytes": lambda: b"QUJD",
    "bytearray": lambda: bytearray(b"QUJD"),
    "memoryview": lambda: memoryview(b"QUJD"),
    "memoryview of a bytearray": lambda: memoryview(bytearray(b"QUJD")),
    "read-only memoryview": lambda: memoryview(bytearray(b"QUJD")).toreadonly(),
    "slice": lambda: memoryview(b"xQUJDx")[1:-1],
    "str subclass": lambda: Str("QUJD"),
    "bytes subclass": lambda: Bytes(b"QUJD"),
    "bytearray subclass": lambda: Bytearray(b"QUJD"),
    "signed bytes": lambda: memoryview(b"QUJD").cast("b"),
    "characters": lambda: memoryview(b"QUJD").cast("c"),
    "booleans": lambda: memoryview(b"QUJD").cast("?"),
    "integers": lambda: memoryview(b"QUJD").cast("I"),
    "array of integers": lambda: memoryview(array.array("H", [1, 2])),
    "two dimensions": lambda: memoryview(b"QUJDQUJD").cast("B", (2, 4)),
    "two dimensions, sliced": lambda: memoryview(b"QUJDQUJD").cast("B", (2, 4))[:1],
    "no dimension": lambda: memoryview(b"Q").cast("B", ()),
    "every second byte": lambda: memoryview(b"QxUxJxDx")[::2],
    "backwards": lambda: memoryview(b"DJUQ")[::-1],
    "one byte of a step": lambda: memoryview(b"QUJD")[::4],
    "nothing of a step": lambda: memoryview(b"QUJD")[::2][:0],
    "no integers": lambda: memoryview(b"").cast("I"),
    "nothing": lambda: memoryview(b""),
    "released": released,
    "array": lambda: array.array("B", b"QUJD"),
    "mmap": lambda: mmap.mmap(-1, 4),
    "exporter": lambda: Exporter([], lambda: None),
    "None": lambda: None,
    "int": lambda: 4,
    "float": lambda: 4.0,
    "list": lambda: [81, 85],
    "type": lambda: bytes,
    "liar about str": lambda: Liar(str),
    "liar about bytes": lambda: Liar(bytes),
    "liar about bytearray": lambda: Liar(bytearray),
    "liar about memoryview": lambda: Liar(memoryview),
    "lone surrogate": lambda: "QUJ\udc80",
    "Latin-1": lambda: "QUJ\xff",
    "wide": lambda: "QUJ\u2028",
    "wider": lambda: "QUJ\U0001f600",
    "empty str": lambda: "",
    "long str": lambda: "QUJD" * 100_000,
    "long bytearray": lambda: bytearray(b"QUJD" * 100_000),
}

COUNTS: dict[str, Any] = {
    "None": None,
    "0": 0,
    "3": 3,
    "2**63 - 1": 2**63 - 1,
    "2**63": 2**63,
    "2**64 - 1": 2**64 - 1,
    "2**64": 2**64,
    "2**200": 2**200,
    "-1": -1,
    "-2**63": -(2**63),
    "-2**63 - 1": -(2**63) - 1,
    "-2**200": -(2**200),
    "True": True,
    "False": False,
    "1.0": 1.0,
    "str": "3",
    "bytes": b"3",
    "int subclass": Int(3),
    "negative int subclass": Int(-3),
    "large int subclass": Int(2**64),
    "with __index__": Index(),
    "liar": Liar(int),
}


def appended(core: ModuleType, data: Any) -> Any:
    capped = core.CappedBytes(2**40, sha256=True)
    capped.append(data)
    return len(capped), capped.finish(), capped.hexdigest()


def hashed(core: ModuleType, data: Any) -> Any:
    running = core.Sha256()
    running.update(data)
    return running.digest()


CALLS: dict[str, Callable[[ModuleType, Any], Any]] = {
    "b64decode": lambda core, data: core.b64decode(data),
    "b64decode, capped": lambda core, data: core.b64decode(data, max_bytes=3),
    "b64decode_sha256": lambda core, data: core.b64decode_sha256(data),
    "b64encode": lambda core, data: core.b64encode(data),
    "b64encode_sha256": lambda core, data: core.b64encode_sha256(data),
    "Sha256.update": hashed,
    "CappedBytes.append": appended,
}


@pytest.mark.parametrize("kind", list(DATA))
@pytest.mark.parametrize("call", list(CALLS))
def test_every_kind_of_data_does_the_same_everywhere(
    cores: list[ModuleType], call: str, kind: str
) -> None:
    results = [outcome(CALLS[call], core, DATA[kind]()) for core in cores]
    assert results[0] == results[-1]
    assert results[0][0] is not AssertionError, results[0]


@pytest.mark.parametrize("count", list(COUNTS))
def test_every_kind_of_number_does_the_same_everywhere(cores: list[ModuleType], count: str) -> None:
    value = COUNTS[count]

    def made(core: ModuleType) -> Any:
        capped = core.CappedBytes(value)
        capped.append(bytes(5))
        return capped.finish()

    for work in (
        made,
        lambda core: core.b64decode("QUJD", max_bytes=value),
        lambda core: core.b64decode("QUJDQUJD", max_bytes=value),
        lambda core: core.b64decode_sha256(b"QUJD", max_bytes=value),
        lambda core: core.b64decode(None, max_bytes=value),
        lambda core: core.CappedBytes(5, sha256=value).hexdigest(),
    ):
        results = [outcome(work, core) for core in cores]
        assert results[0] == results[-1]
        assert results[0][0] is not AssertionError, results[0]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, TypeError, "limit must be an int"),
        (None, TypeError, "limit must be an int"),
        (1.0, TypeError, "limit must be an int"),
        (-1, ValueError, "limit must not be negative"),
        (2**64, OverflowError, r"limit must be below 2\*\*64"),
    ],
)
def test_a_limit_is_refused_with_its_own_text(
    core: ModuleType, value: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{text}$"):
        core.CappedBytes(value)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, TypeError, "max_bytes must be an int or None"),
        ("1", TypeError, "max_bytes must be an int or None"),
        (-1, ValueError, "max_bytes must not be negative"),
        (2**64, OverflowError, r"max_bytes must be below 2\*\*64"),
    ],
)
def test_a_cap_is_refused_with_its_own_text_before_the_data_is_read(
    core: ModuleType, value: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{text}$"):
        core.b64decode("not Base64", max_bytes=value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("b64decode", "data must be str, bytes, bytearray or memoryview"),
        ("b64encode", "data must be bytes, bytearray or memoryview"),
        ("Sha256.update", "data must be bytes, bytearray or memoryview"),
        ("CappedBytes.append", "chunk must be bytes, bytearray or memoryview"),
    ],
)
def test_wrong_data_is_refused_with_its_own_text(core: ModuleType, call: str, text: str) -> None:
    with pytest.raises(TypeError, match=f"^{text}$"):
        CALLS[call](core, None)
    for view in (memoryview(b"abcd")[::2], memoryview(bytes(8)).cast("I")):
        with pytest.raises(
            TypeError, match=r"^a memoryview must be C-contiguous and of single bytes$"
        ):
            CALLS[call](core, view)


@pytest.mark.parametrize(
    "work",
    [
        lambda core: core.b64decode(),
        lambda core: core.b64decode("QUJD", 3),
        lambda core: core.b64decode(data="QUJD"),
        lambda core: core.b64decode("QUJD", cap=3),
        lambda core: core.b64encode(b"", max_bytes=3),
        lambda core: core.CappedBytes(),
        lambda core: core.CappedBytes(1, True),
        lambda core: core.CappedBytes(limit=1),
        lambda core: core.CappedBytes(1).append(),
        lambda core: core.CappedBytes(1).finish(1),
        lambda core: core.Sha256(b"abc"),
        lambda core: core.Sha256().update(),
    ],
)
def test_a_call_of_another_shape_is_a_type_error(
    core: ModuleType, work: Callable[[ModuleType], Any]
) -> None:
    with pytest.raises(TypeError):
        work(core)


def test_a_program_behind_a_buffer_is_never_called_back(core: ModuleType) -> None:
    calls: list[int] = []
    capped = core.CappedBytes(100)
    running = core.Sha256()
    exporter = Exporter(calls, lambda: (capped.append(b"x"), running.update(b"x")))
    for work in (capped.append, running.update, core.b64decode, core.b64encode):
        with pytest.raises(TypeError):
            work(exporter)
    capped.append(b"abc")
    assert calls == []
    assert capped.finish() == b"abc"
    if sys.version_info >= (3, 12):  # where memoryview() asks it, once, beforehand
        view = memoryview(Exporter(calls, lambda: None))
        assert core.b64decode(view) == b"ABC"
        assert len(calls) == 1


def test_names_documentation_and_signatures_are_those_of_the_public_module(
    cores: list[ModuleType],
) -> None:
    reference = cores[-1]
    for core in cores:
        assert sorted(core.__all__) == sorted(reference.__all__)
        for name in core.__all__:
            ours, theirs = getattr(core, name), getattr(reference, name)
            assert inspect.getdoc(ours) == inspect.getdoc(theirs)
            if isinstance(ours, type):
                public = [member for member in dir(ours) if not member.startswith("_")]
                assert public == [member for member in dir(theirs) if not member.startswith("_")]
                for member in public:
                    mine, other = getattr(ours, member), getattr(theirs, member)
                    assert inspect.getdoc(mine) == inspect.getdoc(other)
                    assert list(inspect.signature(mine).parameters) == list(
                        inspect.signature(other).parameters
                    )
            else:
                assert [
                    (parameter.name, parameter.kind, parameter.default)
                    for parameter in inspect.signature(ours).parameters.values()
                ] == [
                    (parameter.name, parameter.kind, parameter.default)
                    for parameter in inspect.signature(theirs).parameters.values()
                ]
    assert set(reference.__all__) < set(bytestream.__all__)
