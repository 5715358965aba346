"""Replays dead letters: sends their bodies to the original queue again."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from typing_extensions import TypeVar

from weakincentives.dispatch import publish
from weakincentives.ids import SequelId, derived_id
from weakincentives.logs import get_logger
from weakincentives.runtime.events import DeadLetterReplayed
from weakincentives.runtime.leases.walk import Walk
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxResolutionError,
    MailboxResolver,
    SerializationError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.envelope import JsonSealer, ObjectSealer, Verbatim
from weakincentives.runtime.mailbox.limits import TEN_YEARS
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.optional_protocols import NewReply
from weakincentives.runtime.mailbox.seam.store import REMEMBER_SEQUELS, Outgoing, Seen
from weakincentives.runtime.mailbox.send import send_replay
from weakincentives.runtime.worker.remembered_ids import RememberedIds
from weakincentives.runtime.worker.type_arguments import bind
from weakincentives.serde import Codec

from .find import FoundLetter, LetterFinder
from .letter import DeadLetter, letter_fields, log_processing

__all__ = ["Replay", "replay_dead_letters"]

logger = get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class StoredBody(msgspec.Struct):
    """The body of a stored letter, as raw JSON that is sent again without decoding it."""

    body: msgspec.Raw = msgspec.Raw(b"null")


class ReplyAddress(NamedTuple):
    """Stands for a mailbox of which only the name is known; an envelope needs no more."""

    name: str


_STORED_BODY = msgspec.json.Decoder(StoredBody)


def replay_dead_letters(
    dlq: Mailbox[DeadLetter[T], None],
    source: Mailbox[T, R],
    *,
    predicate: Callable[[DeadLetter[T]], bool] | None = None,
    reply_resolver: MailboxResolver[R] | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, DeadLetter[T]], object] | None = None,
) -> int:
    """Send dead letters to ``source`` again, and return how many were sent.

    Letters that do not match ``predicate`` stay in place with unchanged counts (SQS counts that
    they were received). Each body is sent as it was stored, under an id derived from the letter's
    id, and the letter is removed only after that: if the process is killed in between and the
    replay repeated, the same message is not sent twice. ``dry_run`` only counts. ``progress`` is
    called after each letter, with the count so far and the letter.
    """
    if not isinstance(dlq, StoreMailbox) or not isinstance(source, StoreMailbox):
        raise UnsupportedOperationError(
            "replay_dead_letters needs mailboxes of this package; for other mailboxes, run a "
            "DLQConsumer whose handler sends each body again"
        )
    if dlq is source:
        raise InvalidParameterError(
            f"dlq and source are both {source.name!r}: pass two different mailboxes, or the "
            f"letters would lose their evidence"
        )
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidParameterError(f"limit must be a whole number or None, not {limit!r}")
    body_type = source.body_type
    bind(dlq, DeadLetter[Any if body_type is None else body_type], None)  # type: ignore[misc]
    wanted = None if predicate is None else lambda found: predicate(found.letter)
    replay = Replay(dlq, lambda _: source, wanted, reply_resolver)
    if limit == 0:
        return 0
    try:
        return _count(replay.walk(dry_run=dry_run), limit, progress)
    finally:
        replay.end()


def _count(
    letters: Iterable[FoundLetter],
    limit: int | None,
    progress: Callable[[int, DeadLetter[Any]], object] | None,
) -> int:
    """Return how many letters there are, and tell of each, up to the limit."""
    replayed = 0
    for _, letter in letters:
        replayed += 1
        if progress is not None:
            progress(replayed, letter)
        if limit is not None and replayed >= limit:
            break
    return replayed


def _reply_of(letter: DeadLetter[Any]) -> NewReply | None:
    """Return the reply that is to be opened again, for as long as its caller had asked for."""
    if letter.reply_id is None:
        return None
    timeout, keep = _seconds(letter.reply_timeout), _seconds(letter.reply_keep)
    return NewReply(letter.reply_id, timeout, letter.message_id, keep)


def _seconds(told: float | None) -> float:
    """Return a time that a letter tells; 0, for not known, if no sender can have asked for it."""
    return told if told is not None and 0 < told <= TEN_YEARS else 0.0


class Replay:
    """One pass over a mailbox of dead letters, which sends those that are wanted again.

    ``source_of`` returns the mailbox that a letter is sent to; a letter for which it raises
    `InvalidParameterError` stays in place. ``edited`` is JSON to send instead of their bodies.
    """

    def __init__(
        self,
        dlq: StoreMailbox[Any, Any],
        source_of: Callable[[DeadLetter[Any]], StoreMailbox[Any, Any]],
        wanted: Callable[[FoundLetter], bool] | None,
        resolver: MailboxResolver[Any] | None = None,
        *,
        edited: bytes | None = None,
    ) -> None:
        self._dlq = dlq
        self._edited = edited
        self._source_of = source_of
        self._resolver = resolver
        self._sequels = RememberedIds()
        self.finder = LetterFinder(dlq, wanted)
        self._json = JsonSealer(Codec(DeadLetter[Any]), dlq.limits.max_bytes)

    def walk(self, *, dry_run: bool = False) -> Walk[FoundLetter]:
        """Return the walk that replays letters, or only finds those that it would replay."""
        return Walk(self._dlq, self._matching, None if dry_run else self._send, self._was_removed)

    def _sequel_id(self, id: str) -> SequelId:
        """Return the id of the message that a letter is replayed as."""
        return SequelId(derived_id("replay", self._dlq.name, id))

    def _was_removed(self, seen: Seen, found: FoundLetter) -> None:
        self._sequels.done([(self._source_of(found.letter), str(self._sequel_id(seen.id)))])
        self._sequels.forget_some()

    def end(self) -> None:
        """Forget the remembered ids of replayed letters."""
        self._sequels.forget_all()

    def _matching(self, seen: Seen) -> FoundLetter | None:
        found = self.finder(seen)
        if found is None:
            return None
        try:
            self._reply_to(self._source_of(found.letter), found.letter)
        except (MailboxResolutionError, InvalidParameterError) as error:
            logger.warning("Dead letter %s stays in place: %s", seen.id, error)
            return None
        return found

    def _send(self, seen: Seen, found: FoundLetter) -> None:
        letter = found.letter
        log_processing(letter, "replay")
        message_id = self._sequel_id(seen.id)
        source = self._source_of(letter)
        reply_to = self._reply_to(source, letter)
        body = self._body(source, seen.payload, letter)
        if body is None and letter.raw_payload is not None:
            # The payload is not even an envelope, so send its bytes unchanged.
            raw = Outgoing(str(message_id), letter.raw_payload, 0.0, True, REMEMBER_SEQUELS)
            assert source._plain is not None
            source._plain.put_now((raw,))
        else:
            origin, reply = letter.origin_id or letter.message_id, _reply_of(letter)
            source._run(
                "send",
                lambda: send_replay(
                    source, body, reply_to, letter.attributes, message_id, origin, reply
                ),
            )
        logger.event(logging.INFO, "Replayed dead letter", letter_fields(letter))
        if source.dispatcher is not None:
            publish(source.dispatcher, DeadLetterReplayed(self._dlq.name, seen.id, message_id))

    def _body(self, source: StoreMailbox[Any, Any], payload: Any, letter: DeadLetter[Any]) -> Any:
        """Return the body to send: the stored JSON unchanged if both mailboxes use JSON."""
        if isinstance(source._sealer, ObjectSealer):
            return letter.body if self._edited is None else msgspec.json.decode(self._edited)
        if self._edited is not None:
            return Verbatim(msgspec.Raw(self._edited), letter.body_type)
        if letter.raw_payload is not None:
            try:
                broken = self._json.open(letter.raw_payload)
            except SerializationError:
                return None
            return Verbatim(broken.body, broken.type)
        envelope = self._dlq._sealer.open(payload)
        if isinstance(envelope.body, msgspec.Raw):
            return Verbatim(_STORED_BODY.decode(envelope.body).body, letter.body_type)
        return letter.body

    def _reply_to(self, source: StoreMailbox[Any, Any], letter: DeadLetter[Any]) -> Any:
        if letter.reply_to is None:
            return None
        if self._resolver is not None:
            return self._resolver.resolve(letter.reply_to)
        if isinstance(source._sealer, JsonSealer):
            return ReplyAddress(letter.reply_to)
        try:
            return source._resolve(letter.reply_to)
        except MailboxResolutionError:
            logger.warning(
                "Dead letter of %s: the mailbox %r cannot be resolved, so it is replayed without a "
                "reply address; pass reply_resolver=",
                letter.message_id,
                letter.reply_to,
            )
            return None
