"""Servers for the tests of the HTTP layer: one for each module and parser, and made to order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.support.upload_page import Open, chromium, pages
from tests.support.upload_server import PARSERS, UploadServer, running

ROOMY: dict[str, Any] = {
    "pending_per_workspace": 10_000,
    "hourly_per_workspace": 100_000,
    "creates_per_minute": 100_000,
    "allowed_origins": frozenset({"https://app.example"}),
}
"""Quotas that a test module does not meet by accident."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UploadServer]:
    """Our own protocol with its usual deadlines."""
    with running(tmp_path_factory.mktemp("uploads"), **ROOMY) as made:
        yield made


@pytest.fixture(scope="module", params=PARSERS)
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UploadServer]:
    """The routes under our own protocol and under both of uvicorn's."""
    with running(tmp_path_factory.mktemp("uploads"), request.param, **ROOMY) as made:
        yield made


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., UploadServer]]:
    """Start a server with settings of the test's own."""
    with ExitStack() as stack:

        def make(parser: str = "strict", **settings: Any) -> UploadServer:
            return stack.enter_context(running(tmp_path, parser, **{**ROOMY, **settings}))

        yield make


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, server: UploadServer) -> Iterator[Open]:
    with pages(browser, server) as open_:
        yield open_
