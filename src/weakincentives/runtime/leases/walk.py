"""Walks over the messages that wait in a queue, and takes those that are wanted."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.message import Message
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.store import Leased, Seen

from .extender import Lease, LeaseExtender, LeaseExtenderConfig

__all__ = ["Walk"]

F = TypeVar("F")

PAGE, LARGEST_PAGE = 100, 1000
PAGE_BYTES = 4 * 2**20
"""Pages grow while they have fewer bytes than this: every page costs the backend a search."""
LEASE = 60.0


class Walk(Generic[F]):
    """One pass over the messages that wait in a queue, which takes those that are wanted.

    ``wanted`` looks at a message and returns what it found there, or None to leave the message in
    its place with unchanged counts (SQS counts that it was received). Without ``take``, nothing is
    taken. With it, each wanted message is leased, given to ``take`` and removed, and then
    ``removed`` is called; if ``take`` raises, the message is given back.
    """

    def __init__(
        self,
        box: StoreMailbox[Any, Any],
        wanted: Callable[[Seen], F | None],
        take: Callable[[Seen, F], object] | None = None,
        removed: Callable[[Seen, F], object] | None = None,
    ) -> None:
        self._box = box
        self._wanted = wanted
        self._take = take
        self._removed = removed
        self._looked: Callable[[], object] | None = None

    def watched_by(self, looked: Callable[[], object]) -> Self:
        """Call this before each message that is looked at; it may raise to end the walk."""
        self._looked = looked
        return self

    def __iter__(self) -> Iterator[F]:
        """Yield what was wanted, each after it was taken and removed."""
        return self._by_peeking() if self._box.capabilities.peeks else self._by_receiving()

    def _by_peeking(self) -> Iterator[F]:
        """Peek at each message, and lease only those that are wanted."""
        # Messages that arrive meanwhile, such as a job that failed again, are left alone.
        left = self._box.stats().pending
        offset, size = 0, PAGE
        while left > 0:
            page = self._page(min(size, left), offset)
            if not page:
                return
            left -= len(page)
            size = _next_size(page, size)
            for seen in page:
                found = self._look(seen)
                if found is None:
                    offset += 1
                elif self._take is None:
                    offset += 1
                    yield found
                elif self._take_one(seen, found):
                    yield found

    def _by_receiving(self) -> Iterator[F]:
        """Receive all messages and nack those that are not wanted, on backends without peek.

        They are nacked at the end. Before that they would be received, and counted, again, instead
        of messages that were not seen yet; and so that this holds however long it takes, their
        leases are extended.
        """
        held: dict[str, Lease] = {}
        try:
            yield from self._received(held)
        finally:
            for lease in held.values():
                lease.release()
            self._release([lease.message.receipt_handle for lease in held.values()])

    def _received(self, held: dict[str, Lease]) -> Iterator[F]:
        """Receive until nothing new comes; the messages that stay in place are in ``held``."""
        known: set[str] = set()
        config = LeaseExtenderConfig(interval=LEASE, extension=LEASE, max_lease_seconds=None)
        hold = LeaseExtender(config).hold
        while True:
            messages = self._box.receive(
                max_messages=min(PAGE, self._box.limits.max_batch),
                visibility_timeout=self._box.limits.rounded(LEASE),
            )
            fresh = [message for message in messages if message.id not in known]
            known.update(message.id for message in messages)
            for message in messages:
                if message.id in held:
                    held[message.id].release()
                held[message.id] = hold(message)
            for message in fresh:
                seen = _seen(message)
                found = self._look(seen)
                if found is not None and self._take is None:
                    yield found
                elif found is not None and self._take is not None:
                    self._take(seen, found)
                    message.acknowledge()
                    held.pop(message.id).release()
                    self._was_removed(seen, found)
                    yield found
            if not fresh:
                return

    def _look(self, seen: Seen) -> F | None:
        if self._looked is not None:
            self._looked()
        return self._wanted(seen)

    def _take_one(self, seen: Seen, found: F) -> bool:
        """Lease one message, take it and remove it; False if another consumer has it."""
        plain, take = self._box._plain, self._take
        assert plain is not None
        assert take is not None
        for leased in plain.lease_now(1, LEASE, ids=[seen.id]).messages:
            handles, seen = [leased.handle], _seen(leased)
            try:
                take(seen, found)
            except BaseException:
                self._release(handles)
                raise
            if plain.acknowledge_now(handles)[0]:
                self._was_removed(seen, found)
            return True
        return False

    def _was_removed(self, seen: Seen, found: F) -> None:
        if self._removed is not None:
            self._removed(seen, found)

    def _page(self, limit: int, offset: int) -> Sequence[Seen]:
        return run(lambda: self._box.store.peek(limit, offset))

    def _release(self, handles: Sequence[str]) -> None:
        """Release messages; on backends that can, without counting the delivery."""
        size = self._box.limits.max_batch
        for start in range(0, len(handles), size):
            self._release_some(handles[start : start + size])

    def _release_some(self, handles: Sequence[str]) -> None:
        run(lambda: self._box.store.release(handles, 0.0, "undone"))


def _seen(message: Leased | Message[Any, Any]) -> Seen:
    """Return a received message as one that was seen."""
    sent = message.enqueued_at
    at = sent if isinstance(sent, float | int) else sent.timestamp()
    return Seen(message.id, message.payload, message.delivery_count, message.nack_count, at)


def _next_size(page: Sequence[Seen], size: int) -> int:
    """Return how many messages to ask for next, by the size of these."""
    known = [len(seen.payload) for seen in page if isinstance(seen.payload, bytes)]
    if not known or len(page) < size:
        return size
    average = max(sum(known) // len(known), 1)
    return min(max(PAGE_BYTES // average, PAGE), LARGEST_PAGE)
