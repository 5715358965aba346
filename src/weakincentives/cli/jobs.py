"""The command that shows what became of a job, by the id of its reply."""

import json
from typing import Annotated, Any

import msgspec
import typer

from weakincentives.runtime.mailbox import (
    JobState,
    JobStatus,
    Reply,
    ReplyError,
    ReplyFailedError,
)

from . import output
from .backends import connect_existing
from .queues import DEFAULT_URL, TAKES_IDS, JsonOption, UrlOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command(context_settings=TAKES_IDS)(job)


def job(
    id: Annotated[str, typer.Argument(help="The id of the reply.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the job.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show what has become of a job, and its answer."""
    with connect_existing(url) as backend:
        reply = backend.reply(id)
        cancelled = reply.cancel() if cancel else None
        status = reply.status()
        shown = {"id": id, **_facts(status), **_answer(reply, status)}
    if cancelled is not None:
        shown["cancelled"] = cancelled
    if as_json:
        output.print_json(shown)
        return
    for name, value in shown.items():
        if value is not None:
            text = value if isinstance(value, str) else output.plain_text(value)
            output.print_line(f"{name:<12} {output.printable(text)}")
    if cancelled is False:
        output.note("wink: nothing was cancelled: the job had ended or was cancelled before")


def _facts(status: JobStatus) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(msgspec.json.encode(status))
    return facts


def _answer(reply: Reply[Any], status: JobStatus) -> dict[str, Any]:
    """Return the answer of a job that has ended, or what it failed with."""
    if status.state not in (JobState.DONE, JobState.FAILED):
        return {}
    try:
        return {"answer": reply.poll()}
    except ReplyFailedError as error:
        return {"detail": error.detail}  # the status has the rest
    except ReplyError:
        return {}  # it was read and removed meanwhile
