"""`GET /metrics` for Prometheus. Labels are routes, methods, statuses and codes, never an id."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from agent_sandbox.errors import AuthenticationError
from agent_sandbox.express.requests import KeyRing
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.express.tally import Served
from agent_sandbox.loopback import is_loopback

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class Metrics:
    """Counts requests, and reads what else there is when it is asked.

    Args:
        sandboxes: Whose number is told.
        keys: Who may ask: with API keys their holders, without any this machine.
    """

    def __init__(self, sandboxes: Sandboxes, keys: KeyRing) -> None:
        self._keys = keys
        # Without it each has a second line, which tells when it was first counted.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type for it
        # A registry of our own: what another library registers in the process is its business.
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "agent_sandbox_requests",
            "Requests by route and status; 0: the caller went before an answer.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "agent_sandbox_request_seconds",
            "Time until the answer began; a stream goes on after that.",
            ("method", "route"),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._errors = Counter(
            "agent_sandbox_errors",
            "Errors that were answered, by their code (docs/errors.md).",
            ("code",),
            registry=self._registry,
        )
        self._bytes = Counter(
            "agent_sandbox_body_bytes",
            "Bytes of bodies as they came (in) and went (out).",
            ("direction", "route"),
            registry=self._registry,
        )
        self._registry.register(_State(sandboxes))
        ProcessCollector(registry=self._registry)

    def note(self, served: Served) -> None:
        """Count one request."""
        self._requests.labels(served.method, served.route, str(served.status)).inc()
        if served.head_s is not None:
            self._seconds.labels(served.method, served.route).observe(served.head_s)
        if served.code:
            self._errors.labels(served.code).inc()
        for direction, count in (("in", served.received_bytes), ("out", served.sent_bytes)):
            if count:
                self._bytes.labels(direction, served.route).inc(count)

    async def answer(self, request: Request) -> Response:
        """Tell everything in Prometheus' text format.

        Raises:
            AuthenticationError: E5005: no API key, or no caller of this machine.
        """
        if self._keys:
            self._keys.owner(request, bearer=True)
        elif not _is_near(request):
            raise AuthenticationError
        return Response(
            generate_latest(self._registry),
            headers={"content-type": CONTENT_TYPE_LATEST, "cache-control": "no-store"},
        )


class _State(Collector):
    """What the service knows anyway, read when it is asked for."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def collect(self) -> Iterator[Metric]:
        living, tally = tuple(self._sandboxes), self._sandboxes.tally
        yield GaugeMetricFamily("agent_sandbox_sandboxes", "Sandboxes that are alive.", len(living))
        yield GaugeMetricFamily(
            "agent_sandbox_commands",
            "Commands that run.",
            sum(sandbox.running_commands for sandbox in living),
        )
        yield CounterMetricFamily(
            "agent_sandbox_sandboxes_created", "Sandboxes that were made.", tally.created
        )
        ended = CounterMetricFamily(
            "agent_sandbox_sandboxes_ended",
            "Sandboxes that ended, by the reason: killed, expired, died, shutdown.",
            labels=("reason",),
        )
        for reason in ("killed", "expired", "died", "shutdown"):
            ended.add_metric((reason,), tally.ended[reason])
        yield ended
        yield CounterMetricFamily(
            "agent_sandbox_commands_started", "Commands that were started.", tally.commands
        )


def _is_near(request: Request) -> bool:
    """Tell whether the caller is on this machine; a unix socket has no address and is."""
    return request.client is None or is_loopback(request.client.host)
