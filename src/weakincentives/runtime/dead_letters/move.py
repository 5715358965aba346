"""Moves messages from one queue to another."""

from collections.abc import Callable
from typing import Any

from weakincentives.ids import SequelId, derived_id
from weakincentives.runtime.leases.walk import Walk
from weakincentives.runtime.mailbox import InvalidParameterError, Peeked, SerializationError
from weakincentives.runtime.mailbox.envelope import Envelope, Verbatim
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.optional_protocols import NewReply
from weakincentives.runtime.mailbox.seam.store import REMEMBER_SEQUELS, Outgoing, Seen
from weakincentives.runtime.mailbox.send import send_replay
from weakincentives.runtime.worker.remembered_ids import RememberedIds
from weakincentives.serde import Carrier

from .replay import ReplyAddress

__all__ = ["Move"]


class MovedBody(Verbatim, Carrier):
    """A body that is sent unchanged, and whose size was checked when it was sent first."""


class Move:
    """One pass over a queue, which sends the messages that are wanted to another queue.

    A message is removed only after it was sent. Its new id is derived from the old one, so that the
    target drops the second copy if a move is killed in between and repeated. It cannot keep the old
    id: a queue that remembers this id from an earlier time would drop the message itself.
    """

    def __init__(
        self,
        source: StoreMailbox[Any, Any],
        target: StoreMailbox[Any, Any],
        wanted: Callable[[Peeked[Any]], bool],
    ) -> None:
        if source._queue_name == target._queue_name:
            raise InvalidParameterError(f"{source.name!r} cannot be moved to itself")
        self._source = source
        self._target = target
        self._wanted = wanted
        self._sequels = RememberedIds()

    def walk(self, *, dry_run: bool = False) -> Walk[Peeked[Any]]:
        """Return the walk that moves messages, or only finds those that it would move."""
        take = None if dry_run else self._send
        return Walk(self._source, self._matching, take, self._was_removed)

    def end(self) -> None:
        """Forget the remembered ids of moved messages."""
        self._sequels.forget_all()

    def _matching(self, seen: Seen) -> Peeked[Any] | None:
        peeked = Peeked(self._source, seen)
        return peeked if self._wanted(peeked) else None

    def _moved_id(self, seen: Seen) -> SequelId:
        return SequelId(derived_id("move", self._source.name, seen.id, f"{seen.enqueued_at:.3f}"))

    def _send(self, seen: Seen, _: Peeked[Any]) -> None:
        id, target = self._moved_id(seen), self._target
        try:
            envelope = self._source._sealer.open(seen.payload)
        except SerializationError:
            # It is not an envelope, so send its bytes unchanged.
            raw = Outgoing(str(id), seen.payload, 0.0, True, REMEMBER_SEQUELS)
            assert target._plain is not None
            target._plain.put_now((raw,))
            return
        body = MovedBody(envelope.body, envelope.type)
        origin = envelope.origin or seen.id
        reply_to, reply = _address(envelope), None
        if envelope.reply_id is not None:
            # Without times, the reply stays open for as long as its caller had asked for.
            reply = NewReply(envelope.reply_id, 0.0, seen.id, 0.0)
        target._run(
            "send",
            lambda: send_replay(target, body, reply_to, envelope.attributes, id, origin, reply),
        )

    def _was_removed(self, seen: Seen, _: Peeked[Any]) -> None:
        self._sequels.done([(self._target, str(self._moved_id(seen)))])
        self._sequels.forget_some()


def _address(envelope: Envelope) -> Any:
    return None if envelope.reply_to is None else ReplyAddress(str(envelope.reply_to))
