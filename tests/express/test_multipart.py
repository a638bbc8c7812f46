"""The form reader by itself: any split is the whole, and names are read as browsers write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sandbox.errors import ArgumentError
from agent_sandbox.express.multipart import PartBegin, PartEnd, PartReader, disposition_options

Parts = list[tuple[str, str | None, bytes]]

NAMES = st.text(st.characters(exclude_characters='"\\\r\n\0', codec="utf-8"), max_size=20)


def form(parts: Parts) -> bytes:
    body = b""
    for name, filename, data in parts:
        file = b"" if filename is None else b'; filename="%s"' % filename.encode()
        line = b'Content-Disposition: form-data; name="%s"%s' % (name.encode(), file)
        body += b"--bound\r\n" + line + b"\r\nContent-Type: x/y\r\n\r\n" + data + b"\r\n"
    return body + b"--bound--\r\n"


def read(body: bytes, sizes: list[int]) -> Parts:
    reader = PartReader(b"multipart/form-data; boundary=bound")
    parts: Parts = []
    data = b""
    begun = PartBegin("", None)
    for size in [*sizes, len(body)]:
        for event in reader.feed(body[:size]):
            if isinstance(event, PartBegin):
                begun, data = event, b""
            elif isinstance(event, PartEnd):
                parts.append((begun.name, begun.filename, data))
            else:
                data += event
        body = body[size:]
    reader.finish()
    return parts


@given(
    st.lists(st.tuples(NAMES, st.none() | NAMES, st.binary(max_size=60)), min_size=1, max_size=4),
    st.lists(st.integers(0, 40), max_size=20),
)
def test_any_split_gives_the_same_parts(parts: Parts, sizes: list[int]) -> None:
    assert read(form(parts), sizes) == parts


@pytest.mark.parametrize("data", [b"\r\n", b"--bound", b"\r\n--boun", b"\r\n--bounX", b"\r\r\n-"])
def test_what_looks_like_a_boundary_is_data(data: bytes) -> None:
    parts: Parts = [("file", "/a", data)]
    for cut in range(len(form(parts))):
        assert read(form(parts), [cut]) == parts


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (b"form-data", {}),
        (b'FORM-DATA; Name="a"', {"name": "a"}),
        (b"form-data; name=a; filename=b c ", {"name": "a", "filename": "b c"}),
        (b'form-data; name="a;b=c"; x="" ;', {"name": "a;b=c", "x": ""}),
        (rb'form-data; filename="C:\dir\file \"q\" \\ "', {"filename": r'C:\dir\file "q" \ '}),
        ('form-data; filename="ü%22"'.encode(), {"filename": "ü%22"}),
    ],
)
def test_a_disposition_is_read_as_written(value: bytes, options: dict[str, str]) -> None:
    assert disposition_options(value) == options


@pytest.mark.parametrize(
    "value",
    [
        b"", b"attachment", b"form-data; name", b'form-data; name="a', b'form-data; name="a" b',
        b'form-data; name="a"; name="b"', b'form-data; filename="\xff"', b'form-data; a="\\',
    ],
)  # fmt: skip
def test_a_malformed_disposition_is_refused(value: bytes) -> None:
    with pytest.raises(ArgumentError):
        disposition_options(value)


def test_the_number_of_parts_is_bounded() -> None:
    with pytest.raises(ArgumentError):
        read(form([("a", None, b"")] * 1_001), [])
    assert len(read(form([("a", None, b"")] * 1_000), [])) == 1_000
