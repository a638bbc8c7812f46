"""A directory that vanishes under a running server, as a disk that is no longer mounted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.upload_server import UploadServer


@pytest.mark.parametrize("lost", ["blobs", "uploads.sqlite"])
def test_a_lost_directory_is_a_clear_error_until_it_is_back(
    make_server: Callable[..., UploadServer], lost: str
) -> None:
    server = make_server()
    before, during, after = (server.create(5) for _ in range(3))
    assert server.send(before.put(b"hello")).status == 200
    here, away = server.root / lost, Path(f"{server.root}/away")
    here.rename(away)
    answer = server.send(during.put(b"hello"))
    if lost == "blobs":
        assert (answer.status, answer.json["code"]) == (500, "E7018")
        assert answer.json["state"] == "failed"
    else:
        assert (answer.status, answer.json["code"]) == (503, "E7019")
    assert not here.exists()  # nothing is written beneath a mount point
    away.rename(here)
    assert server.send(after.put(b"hello")).status == 200
    assert server.state(before) == "stored"
    assert server.state(during) == ("failed" if lost == "blobs" else "pending")
