from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.express import Box, Child, Service, child, served


@pytest.fixture
def short_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh directory whose path is short enough for a unix socket."""
    return tmp_path_factory.mktemp("x")


@pytest.fixture(scope="session")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(
        tmp_path_factory.mktemp("tcp"), env={"AGENT_SANDBOX_LOG_LEVEL": "DEBUG"}
    ) as service:
        yield service


@pytest.fixture(scope="session")
def unix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    directory = tmp_path_factory.mktemp("u")
    with child(directory, env={"AGENT_SANDBOX_LOG_LEVEL": "DEBUG"}) as service:
        yield service


@pytest.fixture(params=["tcp", "unix"])
def express(request: pytest.FixtureRequest) -> Service:
    """The same service behind both kinds of socket."""
    service: Service = request.getfixturevalue(request.param)
    return service


@pytest.fixture
def box(express: Service) -> Iterator[Box]:
    sandbox = express.create()
    yield sandbox
    sandbox.kill()


@pytest.fixture
def root(express: Service, box: Box) -> Path:
    """The sandbox's root directory on the host."""
    return express.root_of(box)


@pytest.fixture(params=["1.1", "2"])
def options(request: pytest.FixtureRequest, tcp: Service) -> dict[str, Any]:
    """What the public E2B SDK is told, for each version of HTTP that it may be set to."""
    return {
        "api_key": "e2b_" + "0" * 40,
        "api_url": tcp.url,
        "sandbox_url": tcp.url,
        "http_version": request.param,
    }
