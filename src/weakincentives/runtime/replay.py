"""Dead letters sent again, as they were."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from typing_extensions import TypeVar

from weakincentives.ids import derived_id
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxResolutionError,
    MailboxResolver,
    SerializationError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.envelope import JsonSealer, ObjectSealer, Verbatim
from weakincentives.runtime.mailbox.store import Outgoing, Seen
from weakincentives.runtime.mailbox.typed import StoreMailbox
from weakincentives.serde import Codec

from .dead_letter import DeadLetter
from .events import DeadLetterReplayed
from .type_arguments import bind

__all__ = ["replay_dead_letters"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PAGE = 100
LEASE = 60.0

_PLAIN = Codec(DeadLetter[Any])


class Kept(msgspec.Struct):
    """The part of a stored letter that is sent again without reading it."""

    body: msgspec.Raw = msgspec.Raw(b"null")


class Address(NamedTuple):
    """A reply address of which only the name is known; on the wire that is all there is."""

    name: str


_KEPT = msgspec.json.Decoder(Kept)


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
    """Send dead letters to ``source`` again, and return how many.

    Letters that do not match ``predicate`` stay where they were, their counts untouched. Each
    body is sent as it was stored, under an id derived from the letter's own, and only then is
    the letter removed: killed in between and repeated, it is the same message. ``dry_run`` only
    counts; ``progress`` is called with the count so far and the letter just sent.
    """
    if not isinstance(dlq, StoreMailbox) or not isinstance(source, StoreMailbox):
        raise UnsupportedOperationError(
            "replay_dead_letters needs mailboxes of this package: others are replayed by a "
            "DLQConsumer whose handler sends each body again"
        )
    if dlq is source:
        raise InvalidParameterError(
            f"dlq and source are both {source.name!r}: its letters would lose their evidence"
        )
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidParameterError(f"limit must be a whole number or None, not {limit!r}")
    told = source.body_type
    bind(dlq, DeadLetter[Any if told is None else told], None)  # type: ignore[misc]
    replay = Replay(dlq, source, predicate, reply_resolver, dry_run)
    replayed = 0
    if limit == 0:
        return 0
    for letter in replay.by_looking() if dlq.capabilities.peeks else replay.by_receiving():
        replayed += 1
        if progress is not None:
            progress(replayed, letter)
        if limit is not None and replayed >= limit:
            break
    return replayed


class Replay:
    """One pass over a queue of dead letters."""

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
        self._json = JsonSealer(_PLAIN, dlq.limits.max_bytes)

    def by_looking(self) -> Iterator[DeadLetter[Any]]:
        """Look at each letter, and lease only those that match."""
        store = self._dlq.store
        # What comes in meanwhile, such as a job that failed again, is left for another time.
        left = self._dlq.stats().pending
        offset = 0
        while left > 0:
            page: Sequence[Seen] = store.peek(min(PAGE, left), offset)
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
                elif self._taken(seen.id, letter):
                    yield letter

    def by_receiving(self) -> Iterator[DeadLetter[Any]]:
        """Receive letters and give back those that do not match, where looking is impossible."""
        seen: set[str] = set()
        while True:
            messages = self._dlq.receive(
                max_messages=min(PAGE, self._dlq.limits.max_batch),
                visibility_timeout=self._dlq.limits.rounded(LEASE),
            )
            fresh = [message for message in messages if message.id not in seen]
            try:
                for message in fresh:
                    seen.add(message.id)
                    letter = self._matching(message.payload, message.id)
                    if letter is not None and self._dry_run:
                        yield letter
                    elif letter is not None:
                        self._send(message.payload, message.id, letter)
                        message.acknowledge()
                        yield letter
            finally:
                for message in messages:
                    if not message.is_finalized:
                        message.nack(visibility_timeout=0)
            if not fresh:
                return

    def _taken(self, id: str, letter: DeadLetter[Any]) -> bool:
        """Lease one letter, send it again, and remove it; False if somebody else has it now."""
        store = self._dlq.store
        for leased in store.lease(1, LEASE, ids=[id]).messages:
            try:
                self._send(leased.payload, id, letter)
            except BaseException:
                store.release([leased.handle], 0.0)
                raise
            store.acknowledge([leased.handle])
            return True
        return False

    def _matching(self, payload: Any, id: str) -> DeadLetter[Any] | None:
        try:
            letter = self._read(payload)
        except SerializationError as error:
            logger.warning("%s is no dead letter, it stays where it is: %s", id, error)
            return None
        if self._predicate is not None and not self._predicate(letter):
            return None
        try:
            self._reply_to(letter)
        except MailboxResolutionError as error:
            logger.warning("Dead letter %s stays where it is: %s", id, error)
            return None
        return letter

    def _read(self, payload: Any) -> DeadLetter[Any]:
        sealer = self._dlq.sealer
        envelope = sealer.open(payload)
        try:
            letter = sealer.body(envelope)
        except SerializationError:
            if not isinstance(envelope.body, msgspec.Raw):
                raise
            # Its body is of a type that is not known here any more: it can still be sent again.
            letter = self._json.body(envelope)
        if not isinstance(letter, DeadLetter):
            raise SerializationError(f"its body is a {type(letter).__name__}")
        return letter

    def _send(self, payload: Any, id: str, letter: DeadLetter[Any]) -> None:
        message_id = derived_id("replay", self._dlq.name, id)
        reply_to = self._reply_to(letter)
        source = self._source
        body = self._body(payload, letter)
        if body is None and letter.raw_payload is not None:
            # Not even an envelope: the bytes are all there is.
            source.store.put((Outgoing(message_id, letter.raw_payload, 0.0, True),))
        else:
            source.send(
                body, reply_to=reply_to, attributes=letter.attributes, message_id=message_id
            )
        logger.info(
            "Replayed dead letter message_id=%s request_id=%s", letter.message_id, letter.request_id
        )
        if source.dispatcher is not None:
            source.dispatcher.dispatch(DeadLetterReplayed(self._dlq.name, id, message_id))

    def _body(self, payload: Any, letter: DeadLetter[Any]) -> Any:
        """Return what to send: the stored bytes where both sides are JSON."""
        if isinstance(self._source.sealer, ObjectSealer):
            return letter.body
        if letter.raw_payload is not None:
            try:
                broken = self._json.open(letter.raw_payload)
            except SerializationError:
                return None
            return Verbatim(broken.body, broken.type)
        envelope = self._dlq.sealer.open(payload)
        if isinstance(envelope.body, msgspec.Raw):
            return Verbatim(_KEPT.decode(envelope.body).body, letter.body_type)
        return letter.body

    def _reply_to(self, letter: DeadLetter[Any]) -> Any:
        if letter.reply_to is None:
            return None
        if self._resolver is not None:
            return self._resolver.resolve(letter.reply_to)
        if isinstance(self._source.sealer, JsonSealer):
            return Address(letter.reply_to)
        try:
            return self._source.resolve(letter.reply_to)
        except MailboxResolutionError:
            logger.warning(
                "Dead letter of %s: nobody knows %r, so it is replayed without a reply address; "
                "pass reply_resolver=",
                letter.message_id,
                letter.reply_to,
            )
            return None
