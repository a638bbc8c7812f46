"""The one form of a remote path (group Paths of the fault matrix, its lexical half)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_sandbox.errors import PathError
from agent_sandbox.limits import MAX_COMPONENT_BYTES, MAX_PATH_BYTES
from agent_sandbox.paths import canonical_path

LONGEST = "/" + "/".join(["x" * 255] * 15 + ["y" * 255])  # 16 names and 16 slashes: 4,096


@pytest.mark.parametrize(
    ("given_path", "canonical"),
    [
        ("/a", "/a"),
        ("//a", "/a"),
        ("///a//b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/./a", "/a"),
        ("/..b", "/..b"),
        ("/a..", "/a.."),
        ("/...", "/..."),
        ("/%2e%2e/x", "/%2e%2e/x"),
        (r"/a\..\b", r"/a\..\b"),
        ("/ a ", "/ a "),
        ("/a\nb\x1b\u202e", "/a\nb\x1b\u202e"),
        ("/caf\u00e9", "/caf\u00e9"),
        ("/cafe\u0301", "/cafe\u0301"),
        (LONGEST, LONGEST),
        ("/" + "\U0001f600" * 63, "/" + "\U0001f600" * 63),
    ],
)
def test_a_good_path_gets_its_one_form(given_path: str, canonical: str) -> None:
    assert canonical_path(given_path) == canonical


@pytest.mark.parametrize(
    "path",
    [
        "", "a", "./a", "~/a", "../a", " /a", "C:\\a",
        "/..", "/a/..", "/a/../b", "/../a", "/a/b/..", "//..",
        "/a\0", "\0", "/a\0/../b",
        "/\ud800", "/a/\udfff",
        LONGEST + "z", "/" + "\U0001f600" * 1023 + "abcd",
        "/" + "x" * 256, "/a/" + "\u00e9" * 128,
        "/", "/a/", "/a/.", "//", "/.",
    ],
)  # fmt: skip
def test_a_bad_path_is_refused_with_the_fixed_text(path: str) -> None:
    with pytest.raises(PathError) as caught:
        canonical_path(path)
    assert caught.value.args == (PathError.text,)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("given_path", "canonical"),
    [("/", "/"), ("/a/", "/a"), ("/a/.", "/a"), ("//", "/"), ("/.", "/"), ("/a", "/a")],
)
def test_a_directory_may_be_named_with_a_slash_at_its_end(given_path: str, canonical: str) -> None:
    assert canonical_path(given_path, directory=True) == canonical


def test_bytes_are_counted_not_characters() -> None:
    names = "/".join(["\U0001f600" * 51] * 20)
    fits = "/" + names  # 1 + 20 * 204 + 19 = 4,100 bytes: too long, in only 1,040 characters
    assert len(fits) < MAX_PATH_BYTES < len(fits.encode())
    with pytest.raises(PathError):
        canonical_path(fits)
    assert canonical_path(fits[:-1]) == fits[:-1]  # 4,096 bytes


def test_the_length_is_that_of_the_path_as_given() -> None:
    with pytest.raises(PathError):
        canonical_path("/" * MAX_PATH_BYTES + "a")
    assert canonical_path("/" * (MAX_PATH_BYTES - 1) + "a") == "/a"


@given(st.text(alphabet=st.sampled_from(list("/.ab\0\u00e9\U0001f600\\")), max_size=40))
@example("/a/..b/.../.")
def test_a_canonical_path_is_its_own_canonical_form(path: str) -> None:
    try:
        canonical = canonical_path(path, directory=True)
    except PathError:
        assert (
            not path.startswith("/")
            or "\0" in path
            or ".." in path.split("/")
            or any(len(name.encode()) > MAX_COMPONENT_BYTES for name in path.split("/"))
        )
        return
    assert canonical_path(canonical, directory=True) == canonical
    assert canonical.startswith("/")
    assert canonical == "/" or not {"", ".", ".."} & set(canonical[1:].split("/"))
