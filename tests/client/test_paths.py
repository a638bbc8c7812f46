"""Every method checks its path before any request (group Paths of the test matrix)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import connected
from tests.support.bad_peer import BadPeer, Talk, answer

from agent_sandbox.models import ArgumentError, PathError

BAD = [
    "",
    "a",
    "./a",
    "~/a",
    "/..",
    "/a/..",
    "/a/../b",
    "/a\0",
    "/" + "a" * 4096,
    "/" + "\U0001f600" * 1024,
    "/\ud800",
    "/" + "a" * 256,
]
ONLY_DIRECTORIES = ["/", "/a/", "/a/.", "//"]

FILE_METHODS: dict[str, list[Any]] = {
    "read_bytes": [],
    "read_text": [],
    "stream": [],
    "write": [b""],
    "download": [Path("/nowhere/goal")],
}
ENTRY_METHODS: dict[str, list[Any]] = {
    "list": [],
    "stat": [],
    "exists": [],
    "make_dir": [],
    "remove": [],
    "watch": [],
    "rename": ["/b"],
}


def _answers(talk: Talk) -> None:
    talk.send(answer(b"{}"))


async def _refuses(surface: str, method: str, *arguments: Any, error: type[Exception]) -> None:
    with BadPeer(_answers) as peer:
        async with connected(peer, surface=surface, http_client="own") as subject:
            with pytest.raises(error):
                await subject.files(method, *arguments)
            assert peer.data_requests == []


@pytest.mark.parametrize("method", [*FILE_METHODS, *ENTRY_METHODS])
async def test_a_bad_path_is_refused_before_any_request(surface: str, method: str) -> None:
    more = (FILE_METHODS | ENTRY_METHODS)[method]
    with BadPeer(_answers) as peer:
        async with connected(peer, surface=surface, http_client="own") as subject:
            for path in BAD:
                with pytest.raises(PathError):
                    await subject.files(method, path, *more)
            assert peer.data_requests == []


@pytest.mark.parametrize("method", FILE_METHODS)
async def test_a_path_that_only_a_directory_has_is_no_files(surface: str, method: str) -> None:
    with BadPeer(_answers) as peer:
        async with connected(peer, surface=surface, http_client="own") as subject:
            for path in ONLY_DIRECTORIES:
                with pytest.raises(PathError):
                    await subject.files(method, path, *FILE_METHODS[method])
            assert peer.data_requests == []


async def test_both_paths_of_a_rename_and_an_upload_are_checked(
    surface: str, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"x")
    await _refuses(surface, "rename", "/a", "b", error=PathError)
    await _refuses(surface, "upload", local, "b", error=PathError)
    await _refuses(surface, "upload", local, "/b/", error=PathError)


@pytest.mark.parametrize("depth", [0, -1, True, 1.0, 1 << 32])
async def test_a_depth_out_of_range_is_refused(surface: str, depth: Any) -> None:
    await _refuses(surface, "list", "/a", depth, error=ArgumentError)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("//a", "%2Fa"),
        ("/a/./b", "%2Fa%2Fb"),
        ("/..b", "%2F..b"),
        ("/...", "%2F..."),
        ("/%2e%2e/x", "%2F%252e%252e%2Fx"),
        ("/a\\..\\b", "%2Fa%5C..%5Cb"),
        ("/ a ", "%2F%20a%20"),
        ("/a\n\x1b", "%2Fa%0A%1B"),
        ("/e\u0301", "%2Fe%CC%81"),
        ("/\u00e9", "%2F%C3%A9"),
        ("/a?b#c&d=e;f", "%2Fa%3Fb%23c%26d%3De%3Bf"),
    ],
)
async def test_a_path_is_sent_in_its_one_form_and_decoded_once(
    surface: str, path: str, sent: str
) -> None:
    with BadPeer(_answers) as peer:
        async with connected(peer, surface=surface, http_client="own") as subject:
            await subject.files("read_bytes", path, max_bytes=2)
            assert peer.data_requests[0].line == f"GET /files?path={sent} HTTP/1.1"
