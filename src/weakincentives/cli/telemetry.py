"""The options of ``wink worker`` that turn telemetry on."""

from typing import Annotated

import typer

from weakincentives.logs import get_logger
from weakincentives.observability import EventLog, OpenTelemetry, PrometheusMetrics, Subscriber
from weakincentives.runtime.mailbox.errors import InvalidParameterError

__all__ = ["LogEventsOption", "OtelOption", "PrometheusOption", "subscribers"]

logger = get_logger(__name__)

PrometheusOption = Annotated[
    bool,
    typer.Option(
        "--prometheus",
        envvar="WINK_PROMETHEUS",
        help="Show metrics of jobs and queues on /metrics; needs --health-port.",
    ),
]
OtelOption = Annotated[
    bool,
    typer.Option(
        "--otel",
        envvar="WINK_OTEL",
        help="Trace jobs with OpenTelemetry; run wink under opentelemetry-instrument.",
    ),
]
LogEventsOption = Annotated[
    bool,
    typer.Option(
        "--log-events",
        envvar="WINK_LOG_EVENTS",
        help="Log the events of mailboxes and jobs; most only with --log-level debug.",
    ),
]


def subscribers(
    prometheus: bool, otel: bool, log_events: bool, health_port: int | None
) -> list[Subscriber]:
    """Return the subscribers that were asked for."""
    found: list[Subscriber] = []
    if prometheus:
        if health_port is None:
            raise InvalidParameterError("--prometheus needs --health-port: that serves /metrics")
        found.append(PrometheusMetrics())
    if otel:
        found.append(OpenTelemetry())
        _warn_without_provider()
    if log_events:
        found.append(EventLog())
    return found


def _warn_without_provider() -> None:
    from opentelemetry import trace

    if type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace"):
        logger.warning(
            "no OpenTelemetry provider is configured, so no spans are exported: run it as "
            "opentelemetry-instrument wink worker ..., or configure one in the worker's module"
        )
