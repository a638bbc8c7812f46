"""The rate limit of creation, on a clock of the test's own."""

from __future__ import annotations

import pytest

from agent_sandbox.errors import UploadRateError
from agent_sandbox.uploads import rates
from agent_sandbox.uploads.models import Principal
from agent_sandbox.uploads.rates import RateLimit

ONE, TWO, THREE = (Principal(f"caller-{number}", "space") for number in range(3))


def test_a_burst_is_allowed_once_and_comes_back_evenly() -> None:
    now = [0.0]
    limit = RateLimit(2, lambda: now[0])
    limit.take(ONE)
    limit.take(ONE)
    with pytest.raises(UploadRateError) as refused:
        limit.take(ONE)
    assert refused.value.retry_after_s == 30
    limit.take(TWO)  # has a bucket of its own
    now[0] = 29.9
    with pytest.raises(UploadRateError):
        limit.take(ONE)
    now[0] = 30.1
    limit.take(ONE)
    now[0] = 1e6
    limit.take(ONE)
    limit.take(ONE)
    with pytest.raises(UploadRateError):
        limit.take(ONE)


def test_of_many_callers_those_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_MOST_BUCKETS", 2)
    limit = RateLimit(1, lambda: 0.0)
    for caller in (ONE, TWO, THREE):
        limit.take(caller)
    with pytest.raises(UploadRateError):
        limit.take(THREE)
    with pytest.raises(UploadRateError):
        limit.take(TWO)
    limit.take(ONE)
