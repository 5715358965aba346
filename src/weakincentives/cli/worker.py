"""``wink worker``: run a loop, a Worker or a LoopGroup in the foreground."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

import weakincentives
from weakincentives.contrib.mailbox.urls import redacted
from weakincentives.error_text import one_line
from weakincentives.errors import WinkError
from weakincentives.logs import get_logger
from weakincentives.observability import observe
from weakincentives.runtime import LoopGroup, Runnable, ShutdownCoordinator
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.worker.inbox import SHORTEST_LEASE, check_receive

from .flags import named_as_typed
from .log_output import JSON_VARIABLE, LEVEL_VARIABLE, LogLevel, configure_logging
from .queues import DEFAULT_URL, UrlOption
from .targets import find, loop_from
from .telemetry import LogEventsOption, OtelOption, PrometheusOption, subscribers

__all__ = ["UNFINISHED", "LogJsonOption", "LogLevelOption", "register"]

logger = get_logger(__name__)

UNFINISHED = 3
"""The exit code if the deadline passed before all jobs had finished."""
DEFAULT_SHUTDOWN_TIMEOUT = 30.0
FLAGS = {
    "visibility_timeout": "--visibility",
    "wait_time_seconds": "--wait",
    "shutdown_timeout": "--shutdown-timeout",
    "watchdog_threshold": "--watchdog",
    "health_port": "--health-port",
    "health_host": "--health-host",
}

LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level", envvar=LEVEL_VARIABLE, case_sensitive=False, help="The lowest level to log."
    ),
]
LogJsonOption = Annotated[
    bool,
    typer.Option("--log-json", envvar=JSON_VARIABLE, help="Log as JSON, one object per line."),
]


class LoopCrashedError(WinkError):
    """A loop crashed."""


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(worker)


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="A loop, a Worker or a LoopGroup, or a function that makes one from a backend.",
        ),
    ],
    url: UrlOption = DEFAULT_URL,
    health_port: Annotated[
        int | None, typer.Option(help="Serve /health/live, /health/ready and /metrics here.")
    ] = None,
    health_host: Annotated[
        str, typer.Option(help="The address that the probes listen on.")
    ] = "127.0.0.1",
    shutdown_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds that jobs may take to finish after SIGTERM; default: as the group says, "
            "or 30."
        ),
    ] = None,
    watchdog: Annotated[
        float | None,
        typer.Option(help="End the process if a loop makes no progress for this many seconds."),
    ] = None,
    visibility: Annotated[
        float | None, typer.Option(help="Seconds that a lease lasts; default: as the loop says.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds that a receive waits for a message.")] = 20,
    log_level: LogLevelOption = LogLevel.INFO,
    log_json: LogJsonOption = False,
    prometheus: PrometheusOption = False,
    otel: OtelOption = False,
    log_events: LogEventsOption = False,
) -> None:
    """Run workers in the foreground. They finish on SIGTERM or Ctrl-C; a second one ends them.

    Exit codes: 0 all jobs finished, 1 a loop crashed, 2 wrong usage, 3 the deadline passed with
    jobs unfinished (they were given back), 86 the watchdog found a loop that hangs.
    """
    configure_logging(log_level, log_json)
    with named_as_typed(FLAGS):
        check_receive(Limits(), 1, SHORTEST_LEASE if visibility is None else visibility, wait)
    with _signals_handled():
        found = find(target)  # before connecting, which may create a file
        # After that, because the module may configure what they use.
        telemetry = subscribers(prometheus, otel, log_events, health_port)
        with weakincentives.connect(url) as backend:
            if telemetry:
                observe(backend, *telemetry)
            loop = loop_from(found, target, backend)
            with named_as_typed(FLAGS):
                group = LoopGroup(
                    [loop],
                    shutdown_timeout=_deadline(shutdown_timeout, loop),
                    health_port=health_port,
                    health_host=health_host,
                    watchdog_threshold=watchdog,
                )
                if telemetry:
                    observe(group, *telemetry)
                _log_start(target, url)
                _run(group, visibility, wait)
            if not group.drained:
                raise typer.Exit(UNFINISHED)


def _run(group: LoopGroup, visibility: float | None, wait: float) -> None:
    try:
        group.run(visibility_timeout=visibility, wait_time_seconds=wait)
    except WinkError:
        raise
    except Exception as error:  # its traceback is in the log
        raise LoopCrashedError(f"a loop crashed: {one_line(error)}") from error


def _deadline(asked: float | None, loop: Runnable) -> float:
    """Return the deadline of the shutdown: the option, else the group's own, else the default."""
    if asked is not None:
        return asked
    return loop.shutdown_timeout if isinstance(loop, LoopGroup) else DEFAULT_SHUTDOWN_TIMEOUT


def _log_start(target: str, url: str) -> None:
    shown = redacted(url)
    logger.info(
        "wink %s: %s at %s, process %d",
        weakincentives.__version__,
        target,
        shown,
        os.getpid(),
        extra={"target": target, "url": shown},
    )


@contextmanager
def _signals_handled() -> Iterator[None]:
    """Handle signals that arrive before the loop runs: it then stops as soon as it starts."""
    coordinator = ShutdownCoordinator.install()
    try:
        yield
    finally:
        coordinator.uninstall()
