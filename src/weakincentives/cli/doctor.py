"""The command that looks for what will hurt."""

import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import typer

from weakincentives.contrib.mailbox.finding import Finding
from weakincentives.runtime.mailbox import MailboxError
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import output, queue_checks
from .backends import connect_existing, scheme_of
from .queues import DEFAULT_URL, JsonOption, QueuesArgument, UrlOption

__all__ = ["FOUND", "register"]

FOUND = 3
MOST_QUEUES = 1_000
MOST_ALIKE = 10
"""How many findings with the same title are shown to people."""
CHECKUPS = {
    **dict.fromkeys(("redis", "rediss"), "weakincentives.contrib.mailbox.redis.checkup"),
    "sqlite": "weakincentives.contrib.mailbox.sqlite.checkup",
    "sqs": "weakincentives.contrib.mailbox.sqs.checkup",
}
"""The modules that check the backend of a URL, imported when they are needed."""


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(doctor)


def doctor(
    queues: QueuesArgument = None, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False
) -> None:
    """Look for what will hurt, and say how to mend it. Exit code 3 if anything was found."""
    found: list[Finding] = []
    with connect_existing(url) as backend:
        try:
            for finding in _findings(url, backend, queues):
                found.append(_shown(finding, as_json))
        except MailboxError as error:
            # If something was found before, that is the cause.
            if not any(one.severity == "error" for one in found):
                raise
            output.note(f"wink: the queues were not checked: {error}")
    if not as_json:
        _print(found)
    if found:
        raise typer.Exit(FOUND)


def _shown(finding: Finding, as_json: bool) -> Finding:
    """Print a finding at once if programs read it; people see all of one kind together."""
    if as_json:
        output.print_json(finding)
    return finding


def _findings(url: str, backend: Backend, asked: list[str] | None) -> Iterator[Finding]:
    names = partial(_names, backend, asked)
    module = CHECKUPS.get(scheme_of(url).partition("+")[0])
    if module is not None:
        yield from importlib.import_module(module).findings(backend, url, names)
    yield from queue_checks.findings(backend, names())


def _names(backend: Backend, asked: list[str] | None) -> Sequence[str]:
    names = asked or backend.queues()
    if len(names) > MOST_QUEUES:
        output.note(f"wink: looked at {MOST_QUEUES} of {len(names)} queues; name the others")
    return names[:MOST_QUEUES]


def _print(found: Sequence[Finding]) -> None:
    if not found:
        output.print_line("Nothing found.")
    alike: Counter[str] = Counter()
    for finding in found:
        alike[finding.title] += 1
        if alike[finding.title] <= MOST_ALIKE:
            output.print_line(f"{finding.severity}: {finding.title}")
            output.print_line(f"    {finding.fact}")
            output.print_line(f"    fix: {finding.fix}")
    for title, count in alike.items():
        if count > MOST_ALIKE:
            output.print_line(f"{count - MOST_ALIKE} more: {title}")
