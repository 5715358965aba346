"""All commands of ``wink``, and what happens when one of them fails."""

from collections.abc import Callable, Sequence
from functools import partial

import typer

from weakincentives import __version__
from weakincentives.cli.demo import run as demo
from weakincentives.error_text import one_line, place_of
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import InvalidParameterError

from . import dashboard, dlq, doctor, evals, jobs, move, pausing, queues, tail, top, worker, workers
from .output import ReaderGoneError, fail, flush_output, prepare_output, print_line, unwritten

__all__ = ["app", "run"]

OK, FAILED, USAGE = 0, 1, 2
READER_GONE = 141
"""The exit code that shells report for a program that SIGPIPE has ended."""

app = typer.Typer(
    name="wink",
    help="Durable, typed mailboxes: look into queues, send, receive, and run workers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
LOOKING = (queues, top, tail, workers, jobs, doctor)
ACTING = (pausing, dlq, move, worker, dashboard, evals)
for room in (demo, *LOOKING, *ACTING):
    room.register(app)


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    """Durable, typed mailboxes: look into queues, send, receive, and run workers."""
    if version:
        print_line(f"wink {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an expected failure is shown as one line, with an exit code."""
    prepare_output()
    code = _code_of(partial(_command, arguments))
    # What a loop has printed may still be in a buffer: report a fault before Python ends.
    flushed = _code_of(flush_output)
    return code or flushed


def _command(arguments: Sequence[str] | None) -> None:
    try:
        app(args=arguments, prog_name="wink")
    except OSError as error:
        if (place_of(error) or "").endswith(" in echo"):  # Typer shows its help with echo
            raise unwritten(error) from error
        raise


def _code_of(step: Callable[[], object]) -> int:
    try:
        step()
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return FAILED if exit.code is None else exit.code
        return fail(str(exit.code), FAILED)
    except InvalidParameterError as error:
        return fail(str(error), USAGE)
    except ReaderGoneError:
        return READER_GONE
    except WinkError as error:
        return fail(str(error), FAILED)
    except OSError as error:
        return fail(one_line(error), FAILED)
    return OK
