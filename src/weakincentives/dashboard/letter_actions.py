"""Replays and discards dead letters: one, those that were ticked, or all that match."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from weakincentives.runtime.dead_letters.find import FoundLetter, LetterFinder, discard
from weakincentives.runtime.dead_letters.letter import DeadLetter
from weakincentives.runtime.dead_letters.replay import Replay
from weakincentives.runtime.leases.walk import Walk
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.serde import DecodeError, check_depth

from .actions import Actor
from .config import Right
from .exact_json import read_exactly
from .letters import LetterNotFoundError, open_letters
from .passes import PassView, RunningPass
from .search import letter_terms
from .shapes import differences

__all__ = ["WrongShapeError", "begin_pass", "send_edited"]

RIGHTS = {"replay": Right.REPLAY, "discard": Right.DISCARD}


class WrongShapeError(InvalidParameterError):
    """The edited body differs in kind from the original."""

    def __init__(self, found: Sequence[str]) -> None:
        self.found = list(found)
        super().__init__("; ".join(found))


async def begin_pass(
    actor: Actor,
    action: str,
    queue: str,
    *,
    find: str = "",
    ids: Sequence[str] = (),
    most: int | None = None,
    until: float | None = None,
) -> PassView:
    """Begin to count, replay or discard letters, and return how far it is.

    ``ids`` are those that were ticked; without them, all that ``find`` matches and that were given
    up before ``until``. It ends after ``most``: no more than the page has promised.
    """
    right = RIGHTS.get(action)
    if right is not None:
        actor.check(right, queue)
    elif action != "count":
        raise InvalidParameterError(f"a pass can count, replay or discard, not {action[:50]!r}")
    parts = actor.parts
    wanted = _wanted(letter_terms(find, parts.reader), ids, until)
    detail = f"{len(ids)} ticked" if ids else find or "all"

    def ended(view: PassView) -> None:
        if right is not None:
            said = detail if view.error is None else f"{detail}: {view.error}"
            actor.record(right, queue, view.state, view.taken, said)

    def begin() -> RunningPass:
        dlq = open_letters(parts.backend, queue)
        waiting = dlq.stats().pending
        made = parts.passes.begin(action, queue, find, waiting, most, ended)
        made.start(*_walk(action, parts.backend, dlq, wanted))
        return made

    return (await parts.calls.run(begin)).view()


async def send_edited(actor: Actor, queue: str, id: str, text: str, *, force: bool) -> None:
    """Send the message of one letter again with another body, and remove the letter."""
    for right in (Right.REPLAY, Right.SEND):
        actor.check(right, queue)
    body = _checked(text)

    def send() -> int:
        dlq = open_letters(actor.parts.backend, queue)

        def wanted(found: FoundLetter) -> bool:
            if found.id != id:
                return False
            contents = actor.parts.reader.of_body(found.letter.body, whole=True)
            if not force and found.letter.raw_payload is None and contents.text is not None:
                wrong = differences(read_exactly(contents.text), read_exactly(body))
                if wrong:
                    raise WrongShapeError(wrong)
            return True

        replay = Replay(dlq, _sources(actor.parts.backend, dlq), wanted, edited=body)
        try:
            for _ in replay.walk():
                return 1
        finally:
            replay.end()
        raise LetterNotFoundError(f"no dead letter {id} waits in {queue}")

    await actor.do(Right.REPLAY, queue, send, lambda count: (count, f"{id}, edited"))


def _wanted(
    matches: Callable[[FoundLetter], bool], ids: Sequence[str], until: float | None
) -> Callable[[FoundLetter], bool]:
    chosen = frozenset(ids)

    def wanted(found: FoundLetter) -> bool:
        if chosen:
            return found.id in chosen
        at = found.letter.dead_lettered_at.timestamp()
        return (until is None or at <= until) and matches(found)

    return wanted


def _walk(
    action: str,
    backend: Backend,
    dlq: StoreMailbox[Any, Any],
    wanted: Callable[[FoundLetter], bool],
) -> tuple[Walk[FoundLetter], Callable[[], object]]:
    """Return the walk of an action, and what must be done at its end."""
    if action == "replay":
        replay = Replay(dlq, _sources(backend, dlq), wanted)
        return replay.walk(), replay.end
    take = discard if action == "discard" else None
    return Walk(dlq, LetterFinder(dlq, wanted), take), lambda: None


def _sources(
    backend: Backend, dlq: StoreMailbox[Any, Any]
) -> Callable[[DeadLetter[Any]], StoreMailbox[Any, Any]]:
    """Return what finds the mailbox that a letter came from."""

    @cache
    def opened(name: str) -> StoreMailbox[Any, Any]:
        if name == dlq.name:
            raise InvalidParameterError(f"its message would go to {name!r}, where the letter is")
        return open_letters(backend, name)

    return lambda letter: opened(letter.source_mailbox)


def _checked(text: str) -> bytes:
    try:
        data = text.encode()
        check_depth(data, DecodeError)
        read_exactly(data)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the body is not JSON: {error}") from error
    return data
