"""Upload sessions for Prometheus. Labels are actions, states and error codes, never an id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_sandbox.errors import UploadError, UploadNotFoundError
from agent_sandbox.loopback import is_loopback
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State


class UploadCollector(Collector):
    """What one service has counted in this process; register it wherever metrics are kept.

    `registry.register(UploadCollector(service))` is enough. The number of sessions in each state
    is the database's, and is told only after `refresh`: a collector cannot wait for a database.
    """

    def __init__(self, service: UploadService) -> None:
        self._service = service
        self._states: Mapping[State, int] | None = None

    async def refresh(self) -> None:
        """Ask the database how many sessions there are; if it does not answer, tell none."""
        try:
            self._states = await self._service.states()
        except UploadError:
            self._states = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it stands."""
        tally = self._service.tally()
        changes = CounterMetricFamily(
            "agent_sandbox_upload_changes",
            "Changes of sessions, by what was done and the state after it.",
            labels=("action", "state"),
        )
        for (action, state), count in tally.changes.items():
            changes.add_metric((action, state), count)
        yield changes
        errors = CounterMetricFamily(
            "agent_sandbox_upload_errors",
            "Errors that were answered, by operation and code (docs/errors.md).",
            labels=("operation", "code"),
        )
        for (operation, code), count in tally.errors.items():
            errors.add_metric((operation, code), count)
        yield errors
        moved = CounterMetricFamily(
            "agent_sandbox_upload_bytes",
            "Bytes of files that arrived (in, failed ones too) and that were used (out).",
            labels=("direction",),
        )
        for direction in ("in", "out"):
            moved.add_metric((direction,), tally.bytes[direction])
        yield moved
        yield GaugeMetricFamily(
            "agent_sandbox_upload_bodies", "Bodies that arrive at the moment.", tally.receiving
        )
        if self._states is not None:
            sessions = GaugeMetricFamily(
                "agent_sandbox_upload_sessions",
                "Sessions of all replicas, by the state that is in force.",
                labels=("state",),
            )
            for one in State:
                sessions.add_metric((str(one),), self._states.get(one, 0))
            yield sessions


def is_near(request: Request) -> bool:
    """Tell whether the caller is on this machine; a unix socket has no address and is."""
    return request.client is None or is_loopback(request.client.host)


def metrics_route(
    service: UploadService,
    path: str = "/metrics",
    *,
    allowed: Callable[[Request], bool] = is_near,
) -> Route:
    """Return a route that tells a service's metrics in Prometheus' text format.

    Args:
        service: Whose metrics.
        path: Where.
        allowed: Who may ask; by default callers on this machine. Behind a proxy everybody looks
            like one: check a credential then. Others get the 404 of an unknown path.
    """
    collector = UploadCollector(service)
    registry = CollectorRegistry()
    registry.register(collector)

    async def answer(request: Request) -> Response:
        if not allowed(request):
            return Response(
                UploadNotFoundError.text,
                UploadNotFoundError.http_status,
                {"cache-control": "no-store"},
            )
        await collector.refresh()
        return Response(
            generate_latest(registry),
            headers={"content-type": CONTENT_TYPE_LATEST, "cache-control": "no-store"},
        )

    return Route(path, answer, methods=["GET"])
