"""Replays dead letters: sends their bodies to the original queue again."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from typing_extensions import TypeVar

from weakincentives.dispatch import publish
from weakincentives.ids import SequelId, derived_id
from weakincentives.logs import get_logger
from weakincentives.runtime.events import DeadLetterReplayed
from weakincentives.runtime.leases.extender import Lease, LeaseExtender, LeaseExtenderConfig
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxResolutionError,
    MailboxResolver,
    SerializationError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.envelope import JsonSealer, ObjectSealer, Verbatim
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.optional_protocols import NewReply
from weakincentives.runtime.mailbox.seam.store import REMEMBER_SEQUELS, Outgoing, Seen
from weakincentives.runtime.mailbox.send import send_replay
from weakincentives.runtime.worker.remembered_ids import RememberedIds
from weakincentives.runtime.worker.type_arguments import bind
from weakincentives.serde import Codec

from .letter import DeadLetter, letter_fields, log_processing

__all__ = ["replay_dead_letters"]

logger = get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PAGE = 100
LEASE = 60.0

_PLAIN = Codec(DeadLetter[Any])


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
    replay = Replay(dlq, source, predicate, reply_resolver, dry_run)
    if limit == 0:
        return 0
    try:
        letters = replay.by_peeking() if dlq.capabilities.peeks else replay.by_receiving()
        return _count(letters, limit, progress)
    finally:
        replay.end()


def _count(
    letters: Iterator[DeadLetter[Any]],
    limit: int | None,
    progress: Callable[[int, DeadLetter[Any]], object] | None,
) -> int:
    """Return how many letters there are, and tell of each, up to the limit."""
    replayed = 0
    for letter in letters:
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
    timeout, keep = letter.reply_timeout, letter.reply_keep
    return NewReply(letter.reply_id, timeout or 0.0, letter.message_id, keep or 0.0)


class Replay:
    """One pass over a mailbox of dead letters."""

    def __init__(
        self,
        dlq: StoreMailbox[Any, Any],
        source: StoreMailbox[Any, Any],
        predicate: Callable[[DeadLetter[Any]], bool] | None,
        resolver: MailboxResolver[Any] | None,
        dry_run: bool,
    ) -> None:
        self._dlq = dlq
        self._source = source
        self._predicate = predicate
        self._resolver = resolver
        self._dry_run = dry_run
        self._sequels = RememberedIds()
        self._json = JsonSealer(_PLAIN, dlq.limits.max_bytes)

    def by_peeking(self) -> Iterator[DeadLetter[Any]]:
        """Peek at each letter, and lease and replay only those that match."""
        # Letters that arrive meanwhile, such as a job that failed again, are left alone.
        left = self._dlq.stats().pending
        offset = 0
        while left > 0:
            page = self._page(min(PAGE, left), offset)
            if not page:
                return
            left -= len(page)
            for seen in page:
                letter = self._matching(seen.payload, seen.id)
                if letter is None:
                    offset += 1
                elif self._dry_run:
                    offset += 1
                    yield letter
                elif self._replay_one(seen.id, letter):
                    yield letter

    def by_receiving(self) -> Iterator[DeadLetter[Any]]:
        """Receive all letters and nack those that do not match, on backends without peek.

        They are nacked at the end. Before that they would be received, and counted, again, instead
        of letters that were not seen yet; and so that this holds however long it takes, their
        leases are extended.
        """
        held: dict[str, Lease] = {}
        try:
            yield from self._received(held)
        finally:
            for lease in held.values():
                lease.release()
            self._release([lease.message.receipt_handle for lease in held.values()])

    def _received(self, held: dict[str, Lease]) -> Iterator[DeadLetter[Any]]:
        """Receive until nothing new comes; the letters that stay in place are in ``held``."""
        seen: set[str] = set()
        config = LeaseExtenderConfig(interval=LEASE, extension=LEASE, max_lease_seconds=None)
        hold = LeaseExtender(config).hold
        while True:
            messages = self._dlq.receive(
                max_messages=min(PAGE, self._dlq.limits.max_batch),
                visibility_timeout=self._dlq.limits.rounded(LEASE),
            )
            fresh = [message for message in messages if message.id not in seen]
            seen.update(message.id for message in messages)
            for message in messages:
                if message.id in held:
                    held[message.id].release()
                held[message.id] = hold(message)
            for message in fresh:
                letter = self._matching(message.payload, message.id)
                if letter is not None and self._dry_run:
                    yield letter
                elif letter is not None:
                    self._send(message.payload, message.id, letter)
                    message.acknowledge()
                    held.pop(message.id).release()
                    self._was_removed(message.id)
                    yield letter
            if not fresh:
                return

    def _release(self, handles: Sequence[str]) -> None:
        """Release letters; on backends that can, without counting the delivery."""
        size = self._dlq.limits.max_batch
        for start in range(0, len(handles), size):
            self._release_some(handles[start : start + size])

    def _release_some(self, handles: Sequence[str]) -> None:
        run(lambda: self._dlq.store.release(handles, 0.0, "undone"))

    def _replay_one(self, id: str, letter: DeadLetter[Any]) -> bool:
        """Lease one letter, send it again and remove it; False if another consumer has it."""
        plain = self._dlq._plain
        assert plain is not None
        for leased in plain.lease_now(1, LEASE, ids=[id]).messages:
            handles = [leased.handle]
            try:
                self._send(leased.payload, id, letter)
            except BaseException:
                self._release(handles)
                raise
            if plain.acknowledge_now(handles)[0]:
                self._was_removed(id)
            return True
        return False

    def _page(self, limit: int, offset: int) -> Sequence[Seen]:
        return run(lambda: self._dlq.store.peek(limit, offset))

    def _sequel_id(self, id: str) -> SequelId:
        """Return the id of the message that a letter is replayed as."""
        return SequelId(derived_id("replay", self._dlq.name, id))

    def _was_removed(self, id: str) -> None:
        self._sequels.done([(self._source, str(self._sequel_id(id)))])
        self._sequels.forget_some()

    def end(self) -> None:
        """Forget the remembered ids of replayed letters."""
        self._sequels.forget_all()

    def _matching(self, payload: Any, id: str) -> DeadLetter[Any] | None:
        try:
            letter = self._read(payload)
        except SerializationError as error:
            logger.warning("%s is not a dead letter and stays in place: %s", id, error)
            return None
        if self._predicate is not None and not self._predicate(letter):
            return None
        try:
            self._reply_to(letter)
        except MailboxResolutionError as error:
            logger.warning("Dead letter %s stays in place: %s", id, error)
            return None
        return letter

    def _read(self, payload: Any) -> DeadLetter[Any]:
        sealer = self._dlq._sealer
        envelope = sealer.open(payload)
        try:
            letter = sealer.body(envelope)
        except SerializationError:
            if not isinstance(envelope.body, msgspec.Raw):
                raise
            # Its body has a type that is unknown here, but it can still be sent again.
            letter = self._json.body(envelope)
        if not isinstance(letter, DeadLetter):
            raise SerializationError(f"its body is a {type(letter).__name__}")
        return letter

    def _send(self, payload: Any, id: str, letter: DeadLetter[Any]) -> None:
        log_processing(letter, "replay")
        message_id = self._sequel_id(id)
        reply_to = self._reply_to(letter)
        source = self._source
        body = self._body(payload, letter)
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
            publish(source.dispatcher, DeadLetterReplayed(self._dlq.name, id, message_id))

    def _body(self, payload: Any, letter: DeadLetter[Any]) -> Any:
        """Return the body to send: the stored JSON unchanged if both mailboxes use JSON."""
        if isinstance(self._source._sealer, ObjectSealer):
            return letter.body
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

    def _reply_to(self, letter: DeadLetter[Any]) -> Any:
        if letter.reply_to is None:
            return None
        if self._resolver is not None:
            return self._resolver.resolve(letter.reply_to)
        if isinstance(self._source._sealer, JsonSealer):
            return ReplyAddress(letter.reply_to)
        try:
            return self._source._resolve(letter.reply_to)
        except MailboxResolutionError:
            logger.warning(
                "Dead letter of %s: the mailbox %r cannot be resolved, so it is replayed without a "
                "reply address; pass reply_resolver=",
                letter.message_id,
                letter.reply_to,
            )
            return None
