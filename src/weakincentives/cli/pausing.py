"""The commands that pause and resume queues."""

import getpass
import json
import os
import socket
from typing import Annotated, Any

import msgspec
import typer

from weakincentives.runtime.mailbox import QueuePause

from . import output
from .backends import absence_of, connect_existing
from .queues import DEFAULT_URL, JsonOption, QueueArgument, UrlOption, say_absence

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``wink``."""
    for command in (pause, resume):
        app.command()(command)


def pause(
    queue: QueueArgument,
    because: Annotated[
        str | None, typer.Option(help="Why, for whoever finds it paused.", metavar="TEXT")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Pause a queue: no worker receives from it until it is resumed. Running jobs finish."""
    with connect_existing(url) as backend:
        absence = absence_of(url, backend, queue)  # later it would be listed, being paused
        paused = backend.pause(queue, because=because, by=_user())
    say_absence(absence)
    if as_json:
        output.print_json(_facts(paused))
    else:
        output.print_line(f"paused {queue}; wink resume {queue} ends this")


def resume(queue: QueueArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Resume a queue that was paused."""
    with connect_existing(url) as backend:
        resumed = backend.resume(queue, by=_user())
    if as_json:
        output.print_json({"queue": queue, "resumed": resumed})
    elif resumed:
        output.print_line(f"resumed {queue}")
    else:
        output.print_line(f"{queue} was not paused")


def _facts(paused: QueuePause) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(msgspec.json.encode(paused))
    return facts


def _user() -> str:
    """Return who types this, for whoever wonders later who it was."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # nobody has told this machine who that is
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
