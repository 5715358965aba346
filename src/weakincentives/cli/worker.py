"""``wink worker``: run a loop, a Worker or a LoopGroup in the foreground."""

import importlib
import inspect
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import weakincentives
from weakincentives.cli.queues import DEFAULT_URL, UrlOption
from weakincentives.runtime import InvalidParameterError, LoopGroup, Runnable, ShutdownCoordinator

__all__ = ["UNFINISHED", "load", "register"]

UNFINISHED = 3
"""Exit code: the deadline passed before all jobs had finished; what was left was given back."""


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
    health_host: Annotated[str, typer.Option(help="Where the probes listen.")] = "127.0.0.1",
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that jobs may take to finish after SIGTERM.")
    ] = 30,
    watchdog: Annotated[
        float | None, typer.Option(help="End the process if a loop is silent for so many seconds.")
    ] = None,
    visibility: Annotated[float, typer.Option(help="Seconds that a lease lasts.")] = 300,
    wait: Annotated[float, typer.Option(help="Seconds of a long poll.")] = 20,
) -> None:
    """Run workers until SIGTERM or Ctrl-C; a second signal ends them at once.

    Exit codes: 0 all jobs finished, 1 a loop crashed, 2 wrong usage, 3 the deadline passed with
    jobs unfinished (they were given back), 86 the watchdog found a loop that hangs.
    """
    _configure_logging()
    with _signals_heard(), weakincentives.connect(url) as backend:
        loop = load(target, backend)
        group = LoopGroup(
            [loop],
            shutdown_timeout=shutdown_timeout,
            health_port=health_port,
            health_host=health_host,
            watchdog_threshold=watchdog,
        )
        group.run(visibility_timeout=visibility, wait_time_seconds=wait)
        if not group.drained:
            raise typer.Exit(UNFINISHED)


@contextmanager
def _signals_heard() -> Iterator[None]:
    """Hear a signal that comes while the loop is still being made: it then ends as it begins."""
    coordinator = ShutdownCoordinator.install()
    try:
        yield
    finally:
        coordinator.uninstall()


def load(target: str, backend: Any) -> Runnable:
    """Find what ``module:attribute`` names; a function is called with the backend."""
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise InvalidParameterError(f"{target!r} must be MODULE:ATTRIBUTE, such as jobs:worker")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as if the module were run from here
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # something that the module itself imports
        raise InvalidParameterError(f"there is no module {error.name!r} here") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidParameterError(f"{module_name!r} has no attribute {attribute!r}")
        found = getattr(found, part)
    if inspect.isfunction(found):
        found = found(backend)
    if not callable(getattr(found, "run", None)) or not callable(getattr(found, "shutdown", None)):
        raise InvalidParameterError(
            f"{target!r} is a {type(found).__name__}; it must be a loop with run() and "
            f"shutdown(), or a function from a backend to one"
        )
    return found  # type: ignore[no-any-return]


def _configure_logging() -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
