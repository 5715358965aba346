"""Commands that inspect and delete queues, and that send, receive and purge messages."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

import weakincentives
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxError,
    MailboxResolutionError,
    MailboxStats,
    Message,
    Peeked,
    QueueNotEmptyError,
    QueuePause,
    SerializationError,
)
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.serde import Codec, EncodeError

from . import output, tables
from .backends import absence_of, connect_existing, is_in_memory, rehearsal_of, store_mailbox
from .completion import DEFAULT_URL, queue_names
from .flags import named_as_typed

__all__ = [
    "DEFAULT_URL",
    "TAKES_IDS",
    "JsonOption",
    "QueueArgument",
    "QueuesArgument",
    "UrlOption",
    "existing_mailbox",
    "message_facts",
    "register",
    "say_absence",
    "show_message",
    "stats_facts",
]

UrlOption = Annotated[
    str,
    typer.Option(
        "--url", envvar="WINK_URL", help="The backend that has the queues.", metavar="URL"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.")]
TAKES_IDS = {"ignore_unknown_options": True}
"""For commands with an id as argument: one of 64 random ids begins with a hyphen."""
QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The name of the queue.", autocompletion=queue_names)
]
QueuesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUEUE]...", help="Only these queues.", autocompletion=queue_names),
]

RECEIVE_FLAGS = {
    "max_messages": "--max",
    "visibility_timeout": "--visibility",
    "wait_time_seconds": "--wait",
}


def register(app: typer.Typer) -> None:
    """Add the commands to ``wink``."""
    for command in (queues, send, receive, peek, stats, purge, delete):
        app.command()(command)


def queues(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the queues, and count the messages in each."""
    with connect_existing(url) as backend:
        names = sorted({*backend.queues(), *_pauses(backend)})
        if not names and not as_json:
            output.print_line("There are no queues here yet.")
            return
        _show_stats(backend, names, as_json)


def send(
    queue: QueueArgument,
    body: Annotated[str, typer.Argument(help="The body as JSON, or - to read it from stdin.")],
    delay: Annotated[float, typer.Option(help="Seconds until it can be received.")] = 0,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Makes the send idempotent.", metavar="ID")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="Attach KEY=VALUE; can be repeated.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Send a message. From stdin: one message per line of JSON, or one for a whole document."""
    bodies = _documents(_read_stdin()) if body == "-" else [_document(body, "the body")]
    if message_id is not None and len(bodies) > 1:
        raise InvalidParameterError("--id is for a single message, but stdin has several")
    attributes = dict(_pair(text) for text in attribute or ()) or None
    rehearsal = rehearsal_of(url, queue)
    if rehearsal is not None:
        # Try it in memory first, so that a message that is refused creates no file.
        list(_sent_one_by_one(rehearsal, bodies[:1], delay, attributes, message_id))
    with weakincentives.connect(url) as backend:
        mailbox = backend.mailbox(queue)
        unheard = _print_all_sent(
            _sent_one_by_one(mailbox, bodies, delay, attributes, message_id), as_json
        )
    if is_in_memory(url):
        gone = "message" if len(bodies) == 1 else "messages"
        output.note(f"wink: memory:// exists only in this process, so the {gone} will be lost")
    if unheard is not None and not isinstance(unheard, output.ReaderGoneError):
        raise output.OutputError(f"all messages were sent, but {unheard}")


def _sent_one_by_one(
    mailbox: Mailbox[Any, Any],
    documents: list[Any],
    delay: float,
    attributes: dict[str, str] | None,
    message_id: str | None,
) -> Iterator[str]:
    for number, document in enumerate(documents, 1):
        try:
            with named_as_typed({"delay_seconds": "--delay", "message_id": "--id"}):
                id = mailbox.send(
                    document, delay_seconds=delay, attributes=attributes, message_id=message_id
                )
            yield id
        except WinkError as error:
            if number > 1:
                raise WinkError(f"message {number} of stdin: {error}") from error
            if isinstance(error, SerializationError):
                raise InvalidParameterError(str(error)) from error
            raise


def _print_all_sent(sent: Iterator[str], as_json: bool) -> output.OutputError | None:
    """Print each id at once, because a later send may fail. If printing fails, only send."""
    unheard: output.OutputError | None = None
    for id in sent:
        if unheard is None:
            try:
                _print_sent(id, as_json)
            except output.OutputError as error:
                unheard = error
    return unheard


def _print_sent(id: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"id": id})
    else:
        output.print_line(f"sent {id}")


def receive(
    queue: QueueArgument,
    ack: Annotated[
        bool, typer.Option("--ack", help="Remove the messages that were received.")
    ] = False,
    most: Annotated[int, typer.Option("--max", help="At most this many messages.")] = 1,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first message.")] = 0,
    visibility: Annotated[
        float, typer.Option(help="Without --ack: seconds until the messages can be received again.")
    ] = 30,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Receive messages and print them. Without --ack they come back later."""
    with connect_existing(url) as backend:
        absence = absence_of(url, backend, queue)
        mailbox = backend.mailbox(queue)
        with named_as_typed(RECEIVE_FLAGS):
            messages = mailbox.receive(
                max_messages=most, visibility_timeout=visibility, wait_time_seconds=wait
            )
        for message in messages:
            _show(message, as_json)
        if ack:  # only after they have been printed
            mailbox.acknowledge_batch(messages)
        counted = None if messages or as_json else mailbox.stats()
    if not messages:
        say_absence(absence)
    if counted is not None:
        output.print_line(f"Nothing to receive in {queue}{_elsewhere(counted)}.")


def peek(
    queue: QueueArgument,
    limit: Annotated[int, typer.Option(help="At most this many messages.")] = 10,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show messages that wait, without receiving them."""
    with connect_existing(url) as backend:
        absence = absence_of(url, backend, queue)
        mailbox = backend.mailbox(queue)
        with named_as_typed({"limit": "--limit"}):
            messages = mailbox.peek(limit)
        for message in messages:
            _show(message, as_json)
        counted = None if messages or as_json else mailbox.stats()
    if not messages:
        say_absence(absence)
    if counted is not None:
        output.print_line(f"No messages are pending in {queue}{_elsewhere(counted)}.")


def _elsewhere(counted: MailboxStats) -> str:
    """Return where the messages are that could not be shown; empty if there are none."""
    counts = {
        "pending": counted.pending,
        "in flight": counted.in_flight,
        "delayed": counted.delayed,
    }
    held = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    facts = [*(["it is paused"] if counted.paused else []), *([held] if held else [])]
    return f": {'; '.join(facts)}" if facts else ""


def stats(
    queue: Annotated[
        str | None,
        typer.Argument(
            help="The name of the queue; all queues if left out.", autocompletion=queue_names
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update every second.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Count the messages by state."""
    with connect_existing(url) as backend:
        if queue is not None:
            say_absence(absence_of(url, backend, queue))
        if not watch:
            _show_stats(backend, _names(backend, queue), as_json)
        elif as_json or not sys.stdout.isatty():
            while True:
                _show_stats(backend, _names(backend, queue), as_json)
                time.sleep(1)
        else:
            with Live(console=tables.console(), auto_refresh=False, screen=False) as live:
                while True:
                    drawn = _stats_table(backend, _names(backend, queue))
                    live.update(drawn, refresh=True)
                    time.sleep(1)


def purge(
    queue: QueueArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Remove every message of a queue, leased and delayed ones too."""
    with connect_existing(url) as backend:
        absence = absence_of(url, backend, queue)
        mailbox = backend.mailbox(queue)
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise InvalidParameterError("purge removes messages; pass --yes to confirm it")
            _confirm_purge(mailbox.approximate_count(), queue)
        removed = mailbox.purge()
    if not removed:
        say_absence(absence)
    if as_json:
        output.print_json({"queue": queue, "removed": removed})
    else:
        output.print_line(f"removed {output.counted(removed, 'message')} from {queue}")


def delete(
    queue: QueueArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete its messages too, leased and delayed ones.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue and all that is known of it; one with messages only with --force."""
    with connect_existing(url) as backend:
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise InvalidParameterError("delete removes a queue; pass --yes to confirm it")
            counted = _counted(backend, queue)
            if force or not counted.total:
                _confirm_delete(counted, queue)
        try:
            deleted = backend.delete(queue, force=force)
        except QueueNotEmptyError as error:
            raise WinkError(str(error).replace("force=True", "--force")) from error
    if not deleted:
        say_absence(f"there is no queue {queue!r} here")
    if as_json:
        output.print_json({"queue": queue, "deleted": deleted})
    elif deleted:
        output.print_line(f"deleted {queue}")


def _counted(backend: Backend, queue: str) -> MailboxStats:
    """Count the messages of a queue; none if there is no such queue."""
    try:
        return backend.mailbox(queue).stats()
    except MailboxResolutionError:
        return MailboxStats(0, 0, 0, None)


def _confirm_delete(counted: MailboxStats, queue: str) -> None:
    held = f"{counted.pending} pending, {counted.in_flight} in flight, {counted.delayed} delayed"
    what = "which is empty" if not counted.total else f"with its messages ({held})"
    typer.confirm(f"Delete {queue}, {what}?", abort=True)


def existing_mailbox(url: str, backend: Backend, queue: str) -> StoreMailbox[Any, Any]:
    """Open the mailbox of a queue that should exist, and say so if it does not."""
    say_absence(absence_of(url, backend, queue))
    return store_mailbox(backend, queue)


def say_absence(absence: str | None) -> None:
    """Say on standard error that a queue does not exist, or may not."""
    if absence is not None:
        output.note(f"wink: {absence}")


def _confirm_purge(count: int, queue: str) -> None:
    every = "the only message" if count == 1 else f"all {count} messages"
    typer.confirm(f"Remove {every} of {queue}?", abort=True)


def _names(backend: Backend, queue: str | None) -> list[str]:
    return backend.queues() if queue is None else [queue]


def _stats_of(backend: Backend, names: list[str]) -> Iterator[tuple[str, MailboxStats]]:
    for name in names:
        try:
            yield name, backend.mailbox(name).stats()
        except InvalidParameterError as error:
            if len(names) == 1:
                raise
            # Another program wrote it; the other queues can still be shown.
            output.note(f"wink: queue {name!r} is left out: {error}")


def _show_stats(backend: Backend, names: list[str], as_json: bool) -> None:
    if as_json:
        pauses = _pauses(backend)
        for name, counted in _stats_of(backend, names):
            paused = {"paused": _pause_facts(pauses[name])} if name in pauses else {}
            output.print_json({"queue": name, **stats_facts(counted), **paused})
    else:
        tables.show(_stats_table(backend, names))


def stats_facts(counted: MailboxStats) -> dict[str, Any]:
    """Return the counts of a queue for programs."""
    fields: dict[str, Any] = {
        "pending": counted.pending,
        "in_flight": counted.in_flight,
        "delayed": counted.delayed,
        "oldest_age_seconds": counted.oldest_age_seconds,
    }
    return {**fields, "unreadable": counted.unreadable} if counted.unreadable else fields


def _stats_table(backend: Backend, names: list[str]) -> Table:
    pauses = _pauses(backend)
    rows = [
        (
            *(name, each.pending, each.in_flight, each.delayed, _age(each), each.unreadable),
            _pause_text(pauses.get(name)),
        )
        for name, each in _stats_of(backend, names)
    ]
    columns = ("queue", "pending", "in flight", "delayed", "oldest", "unreadable", "paused")
    # Records are rarely set aside, and queues rarely paused, so those columns are shown only if
    # there is something to show.
    shown = [at for at in range(len(columns)) if at < 5 or any(row[at] for row in rows)]
    return tables.table(
        "Queues", (columns[at] for at in shown), ([row[at] for at in shown] for row in rows)
    )


def _pauses(backend: Backend) -> dict[str, QueuePause]:
    try:
        return {pause.queue: pause for pause in backend.paused()}
    except MailboxError:  # queues cannot be paused here, or this user may not ask
        return {}


def _pause_text(pause: QueuePause | None) -> str:
    if pause is None:
        return ""
    since = output.duration((datetime.now(UTC) - pause.paused_at).total_seconds())
    return f"for {since} by {pause.by}" + (f": {pause.because}" if pause.because else "")


def _pause_facts(pause: QueuePause) -> dict[str, Any]:
    return {"at": pause.paused_at, "by": pause.by, "because": pause.because}


def _age(counted: MailboxStats) -> str:
    seconds = counted.oldest_age_seconds
    return "-" if seconds is None else output.duration(seconds)


def _show(message: Message[Any, Any] | Peeked[Any], as_json: bool) -> None:
    if as_json:
        output.print_json(message_facts(message))
    else:
        show_message(message)


def message_facts(message: Message[Any, Any] | Peeked[Any]) -> dict[str, Any]:
    """Return a message for programs."""
    body, error = _read(message)
    facts = {
        "id": message.id,
        "body": body,
        "delivery_count": message.delivery_count,
        "nack_count": message.nack_count,
        "enqueued_at": message.enqueued_at,
        "attributes": dict(message.attributes),
    }
    return facts if error is None else {**facts, "error": error}


def _read(message: Message[Any, Any] | Peeked[Any]) -> tuple[Any, str | None]:
    """Return the body of a message, or why it cannot be read."""
    try:
        return message.body, None
    except SerializationError as unreadable:
        return None, str(unreadable)


def show_message(message: Message[Any, Any] | Peeked[Any], mark: str = "") -> None:
    """Print a message for people."""
    body, error = _read(message)
    sent = f"{message.enqueued_at:%Y-%m-%d %H:%M:%S}"
    output.print_line(f"{mark}{message.id} (sent {sent}{_deliveries(message)})")
    output.print_line("  " + (output.plain_text(body) if error is None else f"unreadable: {error}"))
    if message.attributes:
        output.print_line(f"  attributes: {output.plain_text(dict(message.attributes))}")


def _deliveries(message: Message[Any, Any] | Peeked[Any]) -> str:
    count = message.delivery_count
    if isinstance(message, Message):  # this one is a delivery
        return "" if count < 2 else f", delivery {count}"
    if not count:
        return ""
    return ", delivered once" if count == 1 else f", delivered {count} times"


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


def _read_stdin() -> str:
    try:
        # Whatever the terminal's encoding is: JSON is always UTF-8.
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidParameterError(f"stdin is not UTF-8: {error}") from error


def _documents(text: str) -> list[Any]:
    """Read one JSON document, or else one per line."""
    if not text.strip():
        raise InvalidParameterError("stdin is empty")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        # Not splitlines(): it also splits at characters that a JSON string may contain, as U+2028.
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
