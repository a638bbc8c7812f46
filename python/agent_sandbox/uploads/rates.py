"""The rate limit of creation, per principal and process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from agent_sandbox.errors import UploadRateError
from agent_sandbox.uploads.models import Principal

_MOST_BUCKETS = 10_000


class RateLimit:
    """A token bucket for each principal: `per_minute` at once, refilled evenly.

    It softens bursts before they reach the database; the quotas are what is exact.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._rate = per_minute / 60.0
        self._clock = clock
        self._buckets: dict[Principal, tuple[float, float]] = {}

    def take(self, principal: Principal) -> None:
        """Take one token.

        Raises:
            UploadRateError: E7010, with the seconds until there is one again.
        """
        now = self._clock()
        left, since = self._buckets.pop(principal, (self._size, now))
        left = min(self._size, left + (now - since) * self._rate)
        if left < 1.0:
            self._buckets[principal] = (left, now)
            raise UploadRateError(math.ceil((1.0 - left) / self._rate))
        while len(self._buckets) >= _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]  # the one used longest ago
        self._buckets[principal] = (left - 1.0, now)
