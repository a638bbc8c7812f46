"""What agents are told: complete, and without anything that a caller or a secret could put in."""

from __future__ import annotations

import pytest

from agent_sandbox.errors import BY_CODE, UploadError
from agent_sandbox.uploads import guidance

URL = "https://files.example/uploads/abc"


def test_every_next_step_belongs_to_an_error_of_transfers() -> None:
    for code in guidance.NEXT_STEP:
        assert issubclass(BY_CODE[code], UploadError)


def test_the_instructions_hold_every_rule() -> None:
    text = guidance.upload_instructions(URL)
    assert text.count(URL) == 2
    for rule in (guidance.LOST_ANSWER, guidance.CANNOT_PUT, guidance.NEVER, guidance.KEEP_CODE):
        assert rule in text
        assert rule in guidance.llms_txt("https://files.example", 1)


@pytest.mark.parametrize(
    "part",
    [
        "do not PUT again",
        "place_upload",
        "open a new session",
        "say so to the user",
        "agent-sandbox put FILE",
        "public https link",
        "Never say that a file was uploaded",
        "Never approve a payment or anything irreversible before get_upload says `stored`",
        "price is known",
    ],
)
def test_the_description_of_create_upload_url_says_it(part: str) -> None:
    assert part in guidance.CREATE_UPLOAD_URL


def test_adopting_tools_say_what_becomes_of_a_named_sandbox() -> None:
    for text in (guidance.PLACE_UPLOAD, guidance.FETCH_URL, guidance.CREATE_DOWNLOAD_URL):
        assert "destroys a named sandbox at its end: finish all uses of it first" in text


def test_the_guide_names_this_server_and_its_limits() -> None:
    text = guidance.llms_txt("https://files.example", 123_456)
    assert "https://files.example" in text
    assert "123456 bytes" in text
    assert "1048576" in text
