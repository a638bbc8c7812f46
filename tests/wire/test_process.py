"""The messages of `process.Process` in the JSON form that the public SDKs write and read."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from agent_sandbox.wire import process


@pytest.mark.parametrize("code", [0, 1, 127, 255, -1, -2, -9, -15, -11, -40, -64])
def test_a_status_survives_the_wire(code: int) -> None:
    message = process.encode_event(process.end_of(code))
    event = process.ProcessResponse.model_validate_json(message).event
    assert event is not None
    assert event.end is not None
    assert process.code_of(event.end) == code


@pytest.mark.parametrize("text", ["²", "123", "x", "-9", "", "killed (core dumped) "])
def test_a_signal_that_nobody_knows_is_one_all_the_same(text: str) -> None:
    assert process.code_of(process.EndEvent(exit_code=-1, status=f"signal: signal {text}")) == -1


def test_the_end_has_the_form_of_e2b() -> None:
    killed = json.loads(process.encode_event(process.end_of(-9)))["event"]["end"]
    assert killed == {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}
    good = json.loads(process.encode_event(process.end_of(0)))["event"]["end"]
    assert good == {"exited": True, "status": "exit status 0"}


@pytest.mark.parametrize("text", ["-_-_", "+/+/", "QQ", "QQ=="])
def test_bytes_come_in_either_alphabet_and_padded_or_not(text: str) -> None:
    given = process.ProcessInput.model_validate({"stdin": text})
    assert given.stdin in (b"\xfb\xff\xbf", b"A")


@pytest.mark.parametrize("body", ['{"stdin":"%"}', '{"stdin":1}', '{"stdin":"A"}'])
def test_what_is_no_base64_is_refused(body: str) -> None:
    with pytest.raises(ValidationError):
        process.ProcessInput.model_validate_json(body)


def test_output_is_written_by_hand_as_the_model_reads_it() -> None:
    message = process.encode_data("stderr", b"\0\xff", 7)
    event = process.ProcessResponse.model_validate_json(message).event
    assert event is not None
    assert event.data == process.DataEvent(stderr=b"\0\xff", omitted_bytes=7)


def test_the_values_of_variables_are_in_no_repr() -> None:
    assert "canary" not in repr(process.ProcessConfig(cmd="x", envs={"A": "canary"}))
