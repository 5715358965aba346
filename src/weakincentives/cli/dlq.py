"""Commands for dead letters: list, show, replay and discard."""

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Annotated, Any

import msgspec
import typer

from weakincentives.errors import WinkError
from weakincentives.runtime.dead_letters import find
from weakincentives.runtime.dead_letters.filters import letter_filter
from weakincentives.runtime.dead_letters.find import FoundLetter, LetterFinder
from weakincentives.runtime.dead_letters.fingerprint import fingerprint_of
from weakincentives.runtime.dead_letters.groups import LetterGroups
from weakincentives.runtime.dead_letters.letter import DeadLetter
from weakincentives.runtime.dead_letters.replay import Replay
from weakincentives.runtime.leases.walk import Walk
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import output
from .backends import connect_existing, store_mailbox
from .completion import queue_names
from .filters import LetterFilters
from .letter_groups import print_groups, short, time_text
from .passes import DryRunOption, EnoughError, Pass, YesOption, looking
from .queues import DEFAULT_URL, TAKES_IDS, JsonOption, UrlOption, existing_mailbox

__all__ = ["register"]

Queue = Annotated[
    str, typer.Argument(help="The queue of the dead letters.", autocompletion=queue_names)
]
ScanOption = Annotated[
    int, typer.Option("--scan", help="Look at this many letters at most; 0 means at all.", min=0)
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``wink``."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_letters)
    group.command(context_settings=TAKES_IDS)(show)
    for command in (replay, discard):
        group.command()(command)
    app.add_typer(group, name="dlq", help="Look at dead letters; replay or discard them.")


def list_letters(
    queue: Queue,
    filters: LetterFilters = None,
    each: Annotated[bool, typer.Option("--each", help="List single letters.")] = False,
    scan: ScanOption = 10_000,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, grouped by the error's type and the place in your code that raised it."""
    groups = LetterGroups()
    add = partial(_print_line, as_json) if each else groups.add
    with connect_existing(url) as backend:
        dlq = existing_mailbox(url, backend, queue)
        _look(dlq, letter_filter(filters), add, scan)
    if each:
        return
    if as_json:
        for group in groups.largest_first():
            output.print_json(group.shown())
    elif groups.count:
        print_groups(groups, f"{output.counted(groups.count, 'dead letter')} in {queue}")
    elif filters:
        output.print_line(f"No dead letter of {queue} matches.")
    else:
        output.print_line(f"There are no dead letters in {queue}.")


def show(
    queue: Queue,
    id: Annotated[str, typer.Argument(help="The id of the letter, its message or its reply.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of one dead letter."""
    found: list[FoundLetter] = []

    def keep(one: FoundLetter) -> None:
        found.append(one)
        raise EnoughError

    with connect_existing(url) as backend:
        dlq = existing_mailbox(url, backend, queue)
        _look(dlq, letter_filter([f"id={id}"]), keep, 0)
    if not found:
        raise WinkError(f"no dead letter {id!r} waits in {queue!r}")
    (_print_json if as_json else _print_whole)(found[0])


def replay(
    queue: Queue,
    filters: LetterFilters = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="QUEUE", help="Send them here, not where they came from."),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Send the messages of dead letters again, to the queues that they came from."""
    wanted = letter_filter(filters)
    with connect_existing(url) as backend:
        dlq = existing_mailbox(url, backend, queue)
        one = Replay(dlq, _sources(backend, dlq, to), wanted)
        try:
            _carry_out("replay", dlq, one.walk, yes, dry_run, as_json)
        finally:
            one.end()
    _say_strangers(one.finder)


def discard(
    queue: Queue,
    filters: LetterFilters = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters for good."""
    wanted = letter_filter(filters)
    with connect_existing(url) as backend:
        dlq = existing_mailbox(url, backend, queue)
        finder = LetterFinder(dlq, wanted)

        def walk(*, dry_run: bool) -> Walk[FoundLetter]:
            return Walk(dlq, finder, None if dry_run else find.discard)

        _carry_out("discard", dlq, walk, yes, dry_run, as_json)
    _say_strangers(finder)


def _carry_out(
    verb: str,
    dlq: StoreMailbox[Any, Any],
    walk: Callable[..., Walk[FoundLetter]],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what would be done, ask, and do it; with --yes at once."""
    job = Pass(verb, dlq, "dead letter", as_json)
    if not yes or dry_run:
        groups = LetterGroups()
        count = job.rehearse(walk(dry_run=True), groups.add)
        if count and not as_json:
            print_groups(groups, f"{output.counted(count, 'dead letter')} to {verb}")
        if not job.is_confirmed(dry_run):
            job.tell(groups=[group.shown() for group in groups.largest_first()])
            return
    job.carry_out(walk(dry_run=False))


def _sources(
    backend: Backend, dlq: StoreMailbox[Any, Any], to: str | None
) -> Callable[[DeadLetter[Any]], StoreMailbox[Any, Any]]:
    """Return what finds the mailbox that a letter is sent to."""

    @cache
    def opened(name: str) -> StoreMailbox[Any, Any]:
        if name == dlq.name:
            raise InvalidParameterError(f"its message would go to {name!r}, where the letter is")
        return store_mailbox(backend, name)

    if to is not None:
        opened(to)  # a bad name is bad input
    return lambda letter: opened(letter.source_mailbox if to is None else to)


def _look(
    dlq: StoreMailbox[Any, Any],
    wanted: Callable[[FoundLetter], bool],
    each: Callable[[FoundLetter], object],
    most: int,
) -> None:
    """Look at letters without taking any, and say what was left out."""
    finder = LetterFinder(dlq, wanted)
    with suppress(EnoughError), looking(dlq, "letters", most) as looked:
        for found in Walk(dlq, finder).watched_by(looked):
            each(found)
    _say_strangers(finder)


def _say_strangers(finder: LetterFinder) -> None:
    if finder.strangers:
        messages = output.counted(finder.strangers, "message")
        are = "is not a dead letter" if finder.strangers == 1 else "are not dead letters"
        output.note(f"wink: left out {messages} that {are}")


def _print_line(as_json: bool, found: FoundLetter) -> None:
    letter = found.letter
    fingerprint, at = fingerprint_of(letter).id, letter.dead_lettered_at
    if as_json:
        output.print_json(
            {
                "id": found.id,
                "message_id": letter.message_id,
                "fingerprint": fingerprint,
                "source": letter.source_mailbox,
                "error_type": letter.last_error_type,
                "last_error": letter.last_error,
                "dead_lettered_at": at,
            }
        )
        return
    error = f"{letter.last_error_type}: {short(letter.last_error)}"
    output.print_line(
        f"{found.id}  {time_text(at)}  {letter.source_mailbox}  {fingerprint}  {error}"
    )


def _facts(found: FoundLetter) -> dict[str, Any]:
    """Return everything that is known of a letter, its traceback last."""
    fingerprint = fingerprint_of(found.letter)
    facts: dict[str, Any] = json.loads(msgspec.json.encode(found.letter))
    traceback = facts.pop("traceback", None)
    head = {"id": found.id, "fingerprint": fingerprint.id, "frame": fingerprint.frame}
    return {**head, **facts, "traceback": traceback}


def _print_json(found: FoundLetter) -> None:
    output.print_json(_facts(found))


def _print_whole(found: FoundLetter) -> None:
    for name, value in _facts(found).items():
        if value is None:
            continue
        if name == "traceback":
            output.print_line("traceback")
            for line in value.splitlines():
                output.print_line(f"  {line}")
        else:
            if name == "raw_payload":  # in base64, because it may be anything
                value = base64.b64decode(value).decode("utf-8", "backslashreplace")
            text = value if isinstance(value, str) else output.plain_text(value)
            output.print_line(f"{name:<18} {text}")
