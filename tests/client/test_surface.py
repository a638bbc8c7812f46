"""Both surfaces are one: names, signatures and defaults; and what importing costs."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import agent_sandbox
import agent_sandbox.sync

PAIRS = [
    (agent_sandbox.Sandbox, agent_sandbox.sync.Sandbox),
    (agent_sandbox.SandboxClient, agent_sandbox.sync.SandboxClient),
    (agent_sandbox.Files, agent_sandbox.sync.Files),
    (agent_sandbox.AsyncStream, agent_sandbox.sync.Stream),
]

TWINS = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__anext__": "__next__",
    "__aiter__": "__iter__",
}

SPELLING = {
    "AsyncWritable": "Writable",
    "AsyncHttpClient": "BlockingHttpClient",
    "AsyncDriver": "BlockingDriver",
    "AsyncStream": "Stream",
    "StopAsyncIteration": "StopIteration",
}


def surface_of(cls: type) -> dict[str, str]:
    """Return each public name of a class with its signature, as the blocking side spells it."""
    found = {}
    for name, member in inspect.getmembers(cls):
        if name.startswith("_") and name not in TWINS and name not in TWINS.values():
            continue
        if callable(member):
            text = str(inspect.signature(member))
            for theirs, ours in SPELLING.items():
                text = text.replace(theirs, ours)
            found[TWINS.get(name, name)] = text
    found["__init__"] = str(inspect.signature(cls)).replace("Async", "").replace("Blocking", "")
    return found


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda cls: cls.__name__)
def test_both_surfaces_have_the_same_names_signatures_and_defaults(
    asynchronous: type, blocking: type
) -> None:
    assert surface_of(asynchronous) == surface_of(blocking)


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda cls: cls.__name__)
def test_nothing_on_the_blocking_surface_is_a_coroutine(asynchronous: type, blocking: type) -> None:
    for name, member in inspect.getmembers(blocking, callable):
        assert not inspect.iscoroutinefunction(member), name
        assert not inspect.isasyncgenfunction(member), name


def test_read_bytes_has_the_signature_of_the_contract() -> None:
    parameters = inspect.signature(agent_sandbox.Files.read_bytes).parameters
    assert [(p.name, p.default) for p in parameters.values()][1:] == [
        ("path", inspect.Parameter.empty),
        ("max_bytes", None),
        ("deadline_s", None),
    ]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize(
    "module",
    ["agent_sandbox", "agent_sandbox.bytestream", "agent_sandbox.models", "agent_sandbox.express"],
)
def test_importing_a_part_imports_no_http_client(module: str) -> None:
    code = (
        f"import sys, {module}; print([m for m in ('httpx2', 'httpx', 'mcp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_lazy_names_are_all_there() -> None:
    for name in agent_sandbox.__all__:
        assert getattr(agent_sandbox, name) is not None
        assert name in dir(agent_sandbox)
    with pytest.raises(AttributeError):
        _ = agent_sandbox.nothing


def test_the_error_of_the_contract_is_where_the_contract_says() -> None:
    from agent_sandbox.models import FileOperationError, FileSizeLimitError

    error = FileSizeLimitError(7)
    assert (error.code, error.limit) == ("E4003", 7)
    assert isinstance(error, FileOperationError)
    assert agent_sandbox.FileSizeLimitError is FileSizeLimitError


@pytest.mark.parametrize("surface_module", ["sandbox", "blocking_sandbox"])
def test_the_shorthands_take_every_setting_of_the_client(surface_module: str) -> None:
    module = importlib.import_module(f"agent_sandbox.client.{surface_module}")
    parameters = inspect.signature(module.SandboxClient).parameters
    assert list(parameters) == list(module.ClientSettings.__annotations__)
