"""E2B's messages: read liberally, written canonically, no secret in a repr."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from agent_sandbox.wire import e2b


def test_control_plane_fields_have_e2bs_spelling() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    detail = e2b.SandboxDetail(
        template_id="t", sandbox_id="s", started_at=now, end_at=now, state="running", memory_mb=1
    )
    written = json.loads(detail.to_json())
    assert written["templateID"] == "t"
    assert written["memoryMB"] == 1
    assert written["startedAt"] == "2026-01-02T00:00:00Z"
    assert e2b.SandboxDetail.model_validate_json(detail.to_json()) == detail
    wish = b'{"templateID":"t","envVars":{"a":"b"},"allow_internet_access":false,"autoPause":null}'
    read = e2b.NewSandbox.model_validate_json(wish)
    assert (read.env_vars, read.allow_internet_access, read.auto_pause) == (
        {"a": "b"},
        False,
        False,
    )


def test_a_token_has_no_repr() -> None:
    sandbox = e2b.Sandbox(
        template_id="t", sandbox_id="s", envd_version="1", envd_access_token="secret-token"
    )
    assert "secret-token" not in repr(sandbox)
    assert b"secret-token" in sandbox.to_json()


@pytest.mark.parametrize("timeout", [b"true", b"1.0", b'"5"', b"[]"])
def test_a_timeout_is_a_whole_number(timeout: bytes) -> None:
    for kind in (e2b.NewSandbox, e2b.ConnectSandbox, e2b.SandboxTimeout):
        with pytest.raises(ValidationError):
            kind.model_validate_json(b'{"timeout":' + timeout + b"}")


def test_protobuf_json_is_written_canonically() -> None:
    entry = e2b.EntryInfo(
        name="f",
        type=e2b.FileType.FILE,
        size=2**53 + 1,
        mode=0o644,
        modified_time=datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
        is_symlink=False,
    )
    assert json.loads(entry.to_json()) == {
        "name": "f",
        "type": "FILE_TYPE_FILE",
        "size": "9007199254740993",
        "mode": 420,
        "modifiedTime": "2026-01-02T03:04:05.678000Z",
    }
    assert e2b.WatchDirResponse(start=e2b.Empty()).to_json() == b'{"start":{}}'
    assert e2b.Empty().to_json() == b"{}"


def test_protobuf_json_is_read_liberally() -> None:
    entry = e2b.EntryInfo.model_validate_json(
        b'{"name":"f","type":2,"size":"7","modified_time":"2026-01-02T03:04:05.123456789Z",'
        b'"symlinkTarget":null,"unknown":{"a":1}}'
    )
    assert entry.type is e2b.FileType.DIRECTORY
    assert entry.size == 7
    assert entry.modified_time == datetime(2026, 1, 2, 3, 4, 5, 123_456, UTC)
    for kind in (b'"FILE_TYPE_NEW"', b"99", b"-1", b"null"):
        read = e2b.EntryInfo.model_validate_json(b'{"type":' + kind + b"}")
        assert read.type is e2b.FileType.UNSPECIFIED


def test_a_number_is_no_truth_value() -> None:
    with pytest.raises(ValidationError):
        e2b.ListDirRequest.model_validate_json(b'{"depth":true}')
    with pytest.raises(ValidationError):
        e2b.WatchDirRequest.model_validate_json(b'{"recursive":1}')
