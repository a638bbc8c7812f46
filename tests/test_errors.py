"""The error tree and its table: what every edge relies on."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest

from agent_sandbox import errors, models
from agent_sandbox.errors import (
    BY_CODE,
    CATEGORIES,
    EXIT_STATUS,
    TABLE,
    AgentSandboxError,
    Base64Error,
    FileOperationError,
    FileSizeLimitError,
    SizeLimitError,
)

EVERY = sorted(TABLE, key=lambda cls: cls.code)
DOCS = [
    Path(__file__).parent.parent / "docs" / "errors.md",
    Path(__file__).parent.parent / "docs" / "zh" / "errors.md",
]


def instance(cls: type[AgentSandboxError]) -> AgentSandboxError:
    return cls(7) if issubclass(cls, Base64Error | SizeLimitError) else cls()


def test_codes_are_unique_and_lead_back_to_their_class() -> None:
    assert len(BY_CODE) == len(TABLE)
    assert all(BY_CODE[cls.code] is cls for cls in TABLE)


def test_every_error_class_of_the_module_has_a_row() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == set(TABLE)


def test_the_drawn_tree_shows_every_class_with_its_code() -> None:
    drawn = dict(re.findall(r"(\w+Error)\b[^\n]*?\b(E\d{4})\b", errors.__doc__ or ""))
    assert drawn == {cls.__name__: cls.code for cls in TABLE}


@pytest.mark.parametrize("cls", EVERY)
def test_an_error_says_its_fixed_text_and_nothing_else(cls: type[AgentSandboxError]) -> None:
    error = instance(cls)
    row = TABLE[cls]
    assert str(error) == error.text == row.text
    assert error.args == (row.text,)
    assert row.category in CATEGORIES
    assert row.exit_status == EXIT_STATUS[row.category]
    assert 400 <= row.http_status < 600
    assert row.text.endswith(".")
    assert row.text.isascii()


@pytest.mark.parametrize("cls", EVERY)
def test_an_error_survives_pickling_and_copying_with_its_attributes(
    cls: type[AgentSandboxError],
) -> None:
    error = instance(cls)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_a_size_limit_of_a_file_is_both_kinds_and_has_its_limit() -> None:
    error = FileSizeLimitError(5)
    assert error.code == "E4003"
    assert error.limit == 5
    assert isinstance(error, FileOperationError)
    assert isinstance(error, SizeLimitError)
    assert models.FileSizeLimitError is FileSizeLimitError


def test_models_hand_out_every_public_error() -> None:
    exported = {getattr(models, name) for name in models.__all__}
    assert set(TABLE) <= exported


def test_a_category_has_one_exit_status_and_none_is_taken_twice() -> None:
    assert set(EXIT_STATUS) == set(CATEGORIES)
    assert len(set(EXIT_STATUS.values())) == len(CATEGORIES)
    assert not set(EXIT_STATUS.values()) & {0, 1, 130}


@pytest.mark.parametrize("page", DOCS, ids=["English", "Chinese"])
def test_the_page_of_errors_shows_the_table_row_for_row(page: Path) -> None:
    lines = re.findall(r"^\| (`E\d{4}` .*) \|$", page.read_text("utf-8"), re.M)
    shown = [" | ".join(line.split(" | ")[:7]) for line in lines]  # Chinese has an eighth column
    assert shown == [
        f"`{row.code}` | `{cls.__name__}` | `{row.category}` | {row.http_status}"
        f" | {row.exit_status} | {'yes' if row.retry_may_help else 'no'} | {row.text}"
        for cls, row in sorted(TABLE.items(), key=lambda entry: entry[1].code)
    ]
