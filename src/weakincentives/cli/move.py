"""The command that moves messages from one queue to another."""

from typing import Annotated

import typer

from weakincentives.runtime.dead_letters.filters import message_filter
from weakincentives.runtime.dead_letters.move import Move

from . import output
from .backends import connect_existing, store_mailbox
from .completion import queue_names
from .filters import MessageFilters
from .passes import DryRunOption, Pass, YesOption
from .queues import DEFAULT_URL, JsonOption, UrlOption, existing_mailbox

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(move)


def move(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM", help="The queue to take them from.", autocompletion=queue_names
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TO", help="The queue to send them to.", autocompletion=queue_names),
    ],
    filters: MessageFilters = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Move messages that wait to another queue; leased and delayed ones stay."""
    wanted = message_filter(filters)
    with connect_existing(url) as backend:
        box = existing_mailbox(url, backend, source)
        one = Move(box, store_mailbox(backend, target), wanted)
        job = Pass("move", box, "message", as_json)
        if not yes or dry_run:
            count = job.rehearse(one.walk(dry_run=True), lambda _: None)
            if count and not as_json:
                messages = output.counted(count, "message")
                output.print_line(f"{messages} of {source} would go to {target}")
            if not job.is_confirmed(dry_run):
                job.tell(to=target)
                return
        try:
            job.carry_out(one.walk(dry_run=False))
        finally:
            one.end()
