"""The beginning of an id in place of the whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_sandbox.cli._reach import full_id
from agent_sandbox.errors import ArgumentError
from agent_sandbox.sync import SandboxClient


def client(*ids: str) -> SandboxClient:
    infos = [SimpleNamespace(sandbox_id=sandbox_id) for sandbox_id in ids]
    return cast("SandboxClient", cast("Any", SimpleNamespace(list=lambda: infos)))


def test_a_beginning_that_fits_one_is_that_one_and_every_other_stays_as_it_is() -> None:
    some = client("iabcd1", "iabcd2", "iabcd22", "ixyz")
    assert full_id(some, "iabcd1") == "iabcd1"
    assert full_id(some, "iabcd22") == "iabcd22"
    assert full_id(some, "ixyz") == "ixyz"
    assert full_id(client("ixyzzz"), "ixyz") == "ixyzzz"
    assert full_id(client("ixyzzz"), "ixy") == "ixy"  # too few to be meant
    assert full_id(some, "iq123") == "iq123"


def test_a_whole_id_wins_over_longer_ones_and_a_beginning_that_fits_several_is_refused() -> None:
    some = client("iabcd1", "iabcd2", "iabcd22")
    assert full_id(some, "iabcd2") == "iabcd2"
    with pytest.raises(ArgumentError) as caught:
        full_id(some, "iabcd")
    assert vars(caught.value)["reason"].startswith("3 sandboxes begin like this")
