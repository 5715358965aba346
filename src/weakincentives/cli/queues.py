"""Commands that look into queues and move single messages."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

import weakincentives
from weakincentives.cli import output
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxStats,
    Message,
    Peeked,
    SerializationError,
)
from weakincentives.runtime.mailbox.backend import Backend
from weakincentives.serde import Codec, EncodeError

__all__ = ["JsonOption", "UrlOption", "register"]

UrlOption = Annotated[
    str, typer.Option("--url", envvar="WINK_URL", help="Where the messages live.", metavar="URL")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")]
Queue = Annotated[str, typer.Argument(help="Name of the queue.")]

DEFAULT_URL = "sqlite:///wink.db"


def register(app: typer.Typer) -> None:
    """Add the commands to ``wink``."""
    for command in (queues, send, receive, peek, stats, purge):
        app.command()(command)


def queues(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the queues, with the messages in each."""
    with weakincentives.connect(url) as backend:
        names = backend.queues()
        if not names and not as_json:
            output.console().print("There are no queues here yet.")
            return
        _show_stats(backend, names, as_json)


def send(
    queue: Queue,
    body: Annotated[str, typer.Argument(help="The body as JSON, or - to read it from stdin.")],
    delay: Annotated[float, typer.Option(help="Seconds until it becomes visible.")] = 0,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Makes the send idempotent.", metavar="ID")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="Attach KEY=VALUE; may be given again.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Send a message; from stdin, one for each line of JSON, or one for a whole document."""
    bodies = _documents(sys.stdin.read()) if body == "-" else [_document(body, "the body")]
    if message_id is not None and len(bodies) > 1:
        raise InvalidParameterError("--id takes a single message, stdin has several")
    attributes = dict(_pair(text) for text in attribute or ()) or None
    with weakincentives.connect(url) as backend:
        mailbox = backend.mailbox(queue)
        for number, document in enumerate(bodies, 1):
            try:
                sent = mailbox.send(
                    document, delay_seconds=delay, attributes=attributes, message_id=message_id
                )
            except SerializationError as error:
                if number == 1:
                    raise InvalidParameterError(str(error)) from error
                raise SerializationError(f"message {number} of stdin: {error}") from error
            # At once: should a later one fail, these have been sent.
            if as_json:
                output.print_json({"id": sent})
            else:
                output.console().print(f"sent {sent}")


def receive(
    queue: Queue,
    ack: Annotated[bool, typer.Option("--ack", help="Remove what was received.")] = False,
    most: Annotated[int, typer.Option("--max", help="At most this many messages.")] = 1,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first one.")] = 0,
    visibility: Annotated[
        float, typer.Option(help="Without --ack: seconds until it can be received again.")
    ] = 30,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Receive messages and print them; without --ack they come back later."""
    with weakincentives.connect(url) as backend:
        mailbox = backend.mailbox(queue)
        messages = mailbox.receive(
            max_messages=most, visibility_timeout=visibility, wait_time_seconds=wait
        )
        for message in messages:
            _show(message, as_json)
        if ack:
            sys.stdout.flush()  # removed only once it has been printed
            mailbox.acknowledge_batch(messages)
    if not messages and not as_json:
        output.console().print(f"Nothing to receive in {queue}.")


def peek(
    queue: Queue,
    limit: Annotated[int, typer.Option(help="At most this many messages.")] = 10,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Look at the messages that wait, without receiving them."""
    with weakincentives.connect(url) as backend:
        messages = backend.mailbox(queue).peek(limit)
        for message in messages:
            _show(message, as_json)
    if not messages and not as_json:
        output.console().print(f"Nothing waits in {queue}.")


def stats(
    queue: Annotated[str | None, typer.Argument(help="Name of the queue; default: all.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Count the messages by state."""
    with weakincentives.connect(url) as backend:
        if not watch:
            _show_stats(backend, _names(backend, queue), as_json)
        elif as_json or not sys.stdout.isatty():
            while True:
                _show_stats(backend, _names(backend, queue), as_json)
                time.sleep(1)
        else:
            with Live(console=output.console(), auto_refresh=False, screen=False) as live:
                while True:
                    drawn = _stats_table(backend, _names(backend, queue))
                    live.update(drawn, refresh=True)
                    time.sleep(1)


def purge(
    queue: Queue,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Remove every message of a queue, leased and delayed ones too."""
    with weakincentives.connect(url) as backend:
        mailbox = backend.mailbox(queue)
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidParameterError("purge destroys messages: say --yes to do it unasked")
            count = mailbox.approximate_count()
            typer.confirm(f"Remove all {count} messages of {queue}?", abort=True)
        removed = mailbox.purge()
    if as_json:
        output.print_json({"queue": queue, "removed": removed})
    else:
        output.console().print(f"removed {removed} messages from {queue}")


def _names(backend: Backend, queue: str | None) -> list[str]:
    return backend.queues() if queue is None else [queue]


def _stats_of(backend: Backend, names: list[str]) -> Iterator[tuple[str, MailboxStats]]:
    for name in names:
        yield name, backend.mailbox(name).stats()


def _show_stats(backend: Backend, names: list[str], as_json: bool) -> None:
    if as_json:
        for name, counted in _stats_of(backend, names):
            output.print_json({"queue": name, **_fields(counted)})
    else:
        output.console().print(_stats_table(backend, names))


def _fields(counted: MailboxStats) -> dict[str, Any]:
    return {
        "pending": counted.pending,
        "in_flight": counted.in_flight,
        "delayed": counted.delayed,
        "oldest_age_seconds": counted.oldest_age_seconds,
    }


def _stats_table(backend: Backend, names: list[str]) -> Table:
    rows = (
        (name, counted.pending, counted.in_flight, counted.delayed, _age(counted))
        for name, counted in _stats_of(backend, names)
    )
    return output.table("Queues", ("queue", "pending", "in flight", "delayed", "oldest"), rows)


def _age(counted: MailboxStats) -> str:
    seconds = counted.oldest_age_seconds
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _show(message: Message[Any, Any] | Peeked[Any], as_json: bool) -> None:
    try:
        body, error = message.body, None
    except SerializationError as unreadable:
        body, error = None, str(unreadable)
    if as_json:
        shown = {
            "id": message.id,
            "body": body,
            "delivery_count": message.delivery_count,
            "nack_count": message.nack_count,
            "enqueued_at": message.enqueued_at,
            "attributes": dict(message.attributes),
        }
        if error is not None:
            shown["error"] = error
        output.print_json(shown)
        return
    times = "" if message.delivery_count < 2 else f", delivery {message.delivery_count}"
    output.console().print(f"{message.id} (sent {message.enqueued_at:%Y-%m-%d %H:%M:%S}{times})")
    text = output.plain_text(body) if error is None else f"unreadable: {error}"
    output.console().print(f"  {text}", markup=False)


def _document(text: str, what: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"{what} is not JSON: {error} (text needs quotes of its own: '\"text\"')"
        ) from error
    try:
        Codec().encode(value)  # Python reads more than JSON has, such as NaN
    except EncodeError as error:
        raise InvalidParameterError(f"{what} cannot be sent: {error}") from error
    return value


def _documents(text: str) -> list[Any]:
    """Read one JSON document, or else one a line."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        # Not splitlines(), which also splits where a JSON string may go on, as at U+2028.
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    else:
        lines = []
    if len(lines) < 2:
        return [_document(text, "stdin")]
    return [_document(line, f"line {number} of stdin") for number, line in lines]


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidParameterError(f"--attribute must be KEY=VALUE, not {text!r}")
    return key, value
