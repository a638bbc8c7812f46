"""The edge: what nobody foresaw becomes a fixed text and an id, and the tables are complete."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent_sandbox.errors import TABLE, AgentSandboxError, FileOperationError, SandboxNotFoundError
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.failures import os_errors, rest_answer, rpc_answer, rpc_error, stream_end
from agent_sandbox.express.service import Service
from agent_sandbox.express.tree import Tree
from agent_sandbox.wire.connect import EnvelopeDecoder

CANARY = "canary-of-an-exception"


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    state = Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    service = Service(state, keys=(), hosts=None, engine=Engine(None))
    transport = httpx2.ASGITransport(service.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://express") as client:
        yield client
    await service.close()


async def made(http: httpx2.AsyncClient) -> dict[str, str]:
    body = (await http.post("/v2/sandboxes", json={"templateID": "base"})).json()
    return {"e2b-sandbox-id": body["sandboxID"], "x-access-token": body["envdAccessToken"]}


@pytest.mark.parametrize("rpc", [False, True])
async def test_an_unforeseen_exception_shows_nothing(
    http: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rpc: bool,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(CANARY)

    monkeypatch.setattr(Tree, "open_file", fail)
    monkeypatch.setattr(Tree, "stat", fail)
    headers = await made(http)
    with caplog.at_level(logging.DEBUG):
        if rpc:
            url = "/filesystem.Filesystem/Stat"
            answer = await http.post(url, json={"path": "/a"}, headers=headers)
        else:
            answer = await http.get("/files?path=/a", headers=headers)
    assert answer.status_code == 500
    assert answer.headers["agent-sandbox-error"] == "E1000"
    assert answer.json()["message"] == AgentSandboxError.text
    assert CANARY not in answer.text
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    fields: dict[str, Any] = record.__dict__["fields"]
    assert fields["id"] == answer.headers["agent-sandbox-error-id"]
    assert fields["exception"] == "RuntimeError"
    assert CANARY not in json.dumps(fields) + record.getMessage()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.EACCES, "E4002"), (errno.EPERM, "E4002"), (errno.EROFS, "E4002"),
        (errno.ENOENT, "E4001"), (errno.ENOTDIR, "E4004"), (errno.EISDIR, "E4004"),
        (errno.ELOOP, "E4004"), (errno.ENXIO, "E4004"), (errno.ENAMETOOLONG, "E2002"),
        (errno.ENOSPC, "E4006"), (errno.EDQUOT, "E4006"), (errno.EFBIG, "E4006"),
        (errno.EEXIST, "E4005"), (errno.ENOTEMPTY, "E4005"), (errno.EMFILE, "E5003"),
        (errno.EIO, "E4000"),
    ],
)  # fmt: skip
def test_every_errno_has_its_error(code: int, expected: str) -> None:
    with pytest.raises(AgentSandboxError) as raised, os_errors():
        raise OSError(code, CANARY, CANARY)
    assert raised.value.code == expected
    assert CANARY not in repr(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("kind", TABLE)
def test_every_error_has_an_answer_on_every_surface(kind: type[AgentSandboxError]) -> None:
    error = kind.__new__(kind)
    AgentSandboxError.__init__(error)
    for answer in (rest_answer(error, data_plane=True), rest_answer(error, data_plane=False)):
        body = json.loads(bytes(answer.body))
        assert body["code"] == answer.status_code
        assert answer.headers["agent-sandbox-error"] == kind.code
    assert rpc_answer(error).headers["agent-sandbox-error"] == kind.code
    assert rpc_error(error).connect_code == rpc_error(error).code, "a code of the protocol"
    (end,) = EnvelopeDecoder().feed(stream_end(error))
    assert end.end


def test_an_ended_sandbox_is_502_on_the_data_plane_alone() -> None:
    error = SandboxNotFoundError()
    assert rest_answer(error, data_plane=True).status_code == 502
    assert rest_answer(error, data_plane=False).status_code == 404
    assert rest_answer(FileOperationError(), data_plane=True).status_code == 500
