"""Settings and principals that cannot work are refused before anything runs on them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.upload_parts import config

from agent_sandbox.errors import ArgumentError, ConfigError
from agent_sandbox.uploads.models import Principal


@pytest.mark.parametrize(
    "wrong",
    [
        {"server_key": b"x" * 31},
        {"public_url": "files.example"},
        {"public_url": "https://files.example/"},
        {"public_url": ""},
        {"upload_path": "uploads"},
        {"upload_path": "/uploads/"},
        {"upload_path": "/downloads"},
        {"download_path": ""},
        {"allowed_extensions": frozenset({".csv", ".XLSX"})},
        {"allowed_extensions": frozenset({"csv"})},
        {"place_lease_s": 150.0},
        {"creates_per_minute": 0},
        {"put_lifetime_s": 0},
        {"keep_s": -1},
        {"idle_deadline_s": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_reason(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        config(**wrong)
    assert refusal.value.reason


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "a\udfff"])
def test_a_principal_that_no_database_takes_is_refused_before_it_meets_others(text: str) -> None:
    for given in ((text, "blue"), ("static:one", text)):
        with pytest.raises(ArgumentError):
            Principal(*given)
    assert Principal("\U0001f600 \u4e2d", "\u00e9").workspace == "\u00e9"
