"""All commands of ``wink``, and what happens when one of them fails."""

from collections.abc import Sequence

import typer

from weakincentives import __version__
from weakincentives.cli import evals, queues, worker
from weakincentives.cli.demo import run as demo
from weakincentives.cli.output import fail
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import InvalidParameterError

__all__ = ["app", "run"]

OK, FAILED, USAGE = 0, 1, 2

app = typer.Typer(
    name="wink",
    help="Durable, typed mailboxes: look into queues, send, receive, and run workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for room in (demo, queues, worker, evals):
    room.register(app)


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    """Durable, typed mailboxes: look into queues, send, receive, and run workers."""
    if version:
        typer.echo(f"wink {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; every expected failure is one line and an exit code."""
    try:
        app(args=arguments)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else FAILED
    except InvalidParameterError as error:
        return fail(str(error), USAGE)
    except WinkError as error:
        return fail(str(error), FAILED)
    except BrokenPipeError:
        return OK  # whoever read the output has had enough
    return OK
