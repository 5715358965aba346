"""The command that looks for what will hurt."""

from collections.abc import Iterator

import msgspec
import typer

from weakincentives.contrib.mailbox.finding import Finding
from weakincentives.contrib.mailbox.sqlite.backend import SQLiteBackend, options_in, path_of
from weakincentives.contrib.mailbox.urls import split_url
from weakincentives.runtime.mailbox import MailboxError
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import output, queue_checks
from .backends import connect_existing
from .queues import DEFAULT_URL, JsonOption, QueuesArgument, UrlOption

__all__ = ["FOUND", "register"]

FOUND = 3
MOST_QUEUES = 1_000


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(doctor)


def doctor(
    queues: QueuesArgument = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Look for what will hurt, and say how to mend it. Exit code 3 if anything was found."""
    found: list[Finding] = []
    with connect_existing(url) as backend:
        try:
            for finding in _findings(url, backend, queues):
                found.append(finding)
                _print(finding, as_json)
        except MailboxError as error:
            # If something was found before, that is the cause.
            if not any(one.severity == "error" for one in found):
                raise
            output.note(f"wink: the queues were not checked: {error}")
    if found:
        raise typer.Exit(FOUND)
    if not as_json:
        output.print_line("Nothing found.")


def _findings(url: str, backend: Backend, asked: list[str] | None) -> Iterator[Finding]:
    yield from _of_server(url, backend)
    names = asked or backend.queues()
    if len(names) > MOST_QUEUES:
        output.note(f"wink: looked at {MOST_QUEUES} of {len(names)} queues; name the others")
    names = names[:MOST_QUEUES]
    yield from _of_backend(backend, names)
    yield from queue_checks.findings(backend, names)


def _of_server(url: str, backend: Backend) -> Iterator[Finding]:
    if isinstance(backend, SQLiteBackend):
        from weakincentives.contrib.mailbox.sqlite import checkup as of_sqlite

        parts = split_url(url)
        yield from of_sqlite.findings(path_of(url, parts), options_in(url, parts)[0])
    elif type(backend).__name__ == "RedisBackend":
        from weakincentives.contrib.mailbox.redis import checkup as of_redis
        from weakincentives.contrib.mailbox.redis.backend import RedisBackend

        assert isinstance(backend, RedisBackend)
        yield from of_redis.findings(backend)


def _of_backend(backend: Backend, queues: list[str]) -> Iterator[Finding]:
    if type(backend).__name__ == "SQSBackend":
        from weakincentives.contrib.mailbox.sqs import checkup as of_sqs
        from weakincentives.contrib.mailbox.sqs.backend import SQSBackend

        assert isinstance(backend, SQSBackend)
        yield from of_sqs.findings(backend, queues)


def _print(finding: Finding, as_json: bool) -> None:
    if as_json:
        output.print_json(msgspec.to_builtins(finding))
        return
    output.print_line(f"{finding.severity}: {finding.title}")
    output.print_line(f"    {finding.fact}")
    output.print_line(f"    fix: {finding.fix}")
