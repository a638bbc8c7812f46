"""Servers that ask for credentials: one for each module, or one for each test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.guarded import Guarded, guarded_in


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server whose files nobody changes."""
    with guarded_in(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Guarded]:
    """A server of the test's own."""
    with guarded_in(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def free_port() -> int:
    """A port that was free a moment ago, for a server that must know its own address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
