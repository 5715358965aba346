"""The Store on SQS: one queue."""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from weakincentives.clock import Clock, SystemClock
from weakincentives.ids import new_id
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    PayloadTooLargeError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.limits import Limits, check_max_bytes
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leased,
    Leases,
    Outgoing,
    QueueStats,
    Seen,
)

from .batch_calls import PER_CALL, Calls, Entries, batches, in_tens
from .codec import SendEntry, to_entry, to_payload
from .connection import use_step_threads
from .errors import LEASE_ENDED, BatchPartlySentError, Place, plain_code
from .leases import LONGEST_LEASE, HeldLease, HeldLeases
from .long_polls import LongPollListener, LongPolls
from .queue_names import queue_name, url_region

__all__ = ["SQSStore"]

logger = get_logger(__name__)

LARGEST = 1024 * 1024
"""The most bytes that SQS accepts in one message, and in one call."""
DEAD_LETTER_ROOM = 64 * 1024
"""The most bytes that a dead letter adds to the message that it carries."""
SAFE_CALL = 256 * 1024
"""Bytes that every SQS accepts in one call, even with the former, smaller limit."""
SMALLEST_LIMIT = 1024
"""No queue can be set to refuse a message of this size."""
LONGEST_POLL = 20
ONE_GROUP = "wink"
"""The group of messages that are in no other, on a FIFO queue."""
MOST_IN_FLIGHT = 120_000


SYSTEM_ATTRIBUTES = [
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SentTimestamp",
    "MessageGroupId",
]
COUNTS = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
]


class SQSStore:
    """One queue. Calls are batched; if some entries of a batch fail, only those are retried."""

    steps: ClassVar[Steps] = "blocking"

    def __init__(
        self,
        queue_url: str,
        client: Any,
        *,
        name: str | None = None,
        group: str | None = None,
        ordered: bool = True,
        max_bytes: int = LARGEST,
        clock: Clock | None = None,
    ) -> None:
        queue = queue_name(queue_url)
        self.name = name if name is not None else queue
        self.queue_name = queue
        self.fifo = queue.endswith(".fifo")
        self.redrive_policy: dict[str, Any] | None = None
        self.limits = Limits(
            max_delay=900,
            max_visibility=LONGEST_LEASE,
            max_wait=LONGEST_POLL,
            max_batch=PER_CALL,
            max_send_batch=sys.maxsize,  # the store splits a batch itself, and reports each message
            max_bytes=check_max_bytes(max_bytes, LARGEST),
            fractions=False,
        )
        self.capabilities = Capabilities(
            ordered=self.fifo and ordered,
            idempotent_send=self.fifo,
            remembers_sequels=False,
            purge_forgets_ids=False,
            atomic_batches=False,
            fenced=False,
            nack_counts=False,
            uncounted_releases=False,
            delays=not self.fifo,
            cancels=False,
            lists_workers=False,
            pauses=False,
            peeks=False,
            exact_counts=False,
            long_polls=True,
        )
        self.clock: Clock = clock if clock is not None else SystemClock()
        # A poll longer than the client's read timeout would always fail.
        patience = getattr(client.meta.config, "read_timeout", None) or LONGEST_POLL + 1
        self.look_interval = float(max(1, min(LONGEST_POLL, math.floor(patience) - 1)))
        self.backend_key = self._client = client
        use_step_threads(client)
        self._group = ONE_GROUP if group is None and self.fifo else group
        self._place = Place("queue", queue, client.meta.region_name, url_region(queue_url))
        self._calls = Calls(queue_url, self._place)
        self._held = HeldLeases()
        self._limit = SMALLEST_LIMIT
        self._polls = LongPolls(self)
        self._pid = os.getpid()

    async def put(self, messages: Sequence[Outgoing]) -> None:
        """Send the messages, at most ten and a mebibyte per call; raise if any of them fails."""
        entries = [to_entry(message.id, message.payload) for message in messages]
        self._check(messages, entries)
        outcome: list[MailboxError | None] = [None] * len(messages)
        unsent: MailboxError | None = None
        for batch in batches([entry.size for entry in entries], max(SAFE_CALL, self._limit)):
            if unsent is None:
                sending = {n: self._sendable(messages[n], entries[n]) for n in batch}
                for n, error in self._send(sending).items():
                    outcome[n] = error
                    # Stop: a FIFO queue would get out of order, and an outage would fail the rest
                    # too.
                    if self.fifo or isinstance(error, MailboxConnectionError):
                        unsent = error
            else:
                for n in batch:
                    outcome[n] = unsent
        failed = [error for error in outcome if error is not None]
        if len(failed) == len(messages):
            raise failed[0]
        if failed:
            raise BatchPartlySentError(
                [
                    error if error is not None else message.id
                    for message, error in zip(messages, outcome, strict=True)
                ]
            )

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease what a short poll finds; on SQS these are two calls."""
        if ids is not None:
            raise UnsupportedOperationError(f"{self._place}: SQS cannot lease messages by id")
        acknowledged = await self.acknowledge(acknowledge) if acknowledge else ()
        try:
            return self.receive(count, seconds, 0)._replace(acknowledged=acknowledged)
        except MailboxError as error:
            if not acknowledge:
                raise
            # The caller must learn what was acknowledged; the next receive raises the error again.
            logger.warning("acknowledged, but could not receive: %s", error)
            return Leases((), acknowledged)

    def receive(self, count: int, seconds: float, wait: int) -> Leases:
        """Lease what SQS finds within ``wait`` seconds."""
        request = {
            "MaxNumberOfMessages": count,
            "VisibilityTimeout": math.ceil(seconds),
            "WaitTimeSeconds": wait,
            "MessageAttributeNames": ["All"],
            "AttributeNames": SYSTEM_ATTRIBUTES,
        }
        if self.fifo:
            # So that botocore's retry after a lost answer gets the same messages.
            request["ReceiveRequestAttemptId"] = new_id()
        at = self.clock.monotonic()
        found = self._calls.call(self._client.receive_message, request).get("Messages", [])
        if wait:
            at = self.clock.monotonic()
        messages = [_leased(received) for received in found]
        self._held.hold((message.handle for message in messages), at, at + seconds)
        return Leases(messages, at=at)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Delete the messages; False where the lease had ended."""
        return self._settle(self._client.delete_message_batch, handles, None)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Make the messages visible after ``delay``, however they are given back: SQS counts
        every receive. False where the lease had ended."""
        return self._settle(self._client.change_message_visibility_batch, handles, delay)

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Make the leases end ``seconds`` from now, or at SQS's limit of twelve hours."""
        return self._settle(
            self._client.change_message_visibility_batch, handles, seconds, keep=True
        )

    def lease_deadline(self, handle: str) -> float:
        """Return when a lease ends, twelve hours after the receive at the latest."""
        return self._held.until(handle)

    async def purge(self) -> int:
        """Remove every message; return SQS's approximate count."""
        before = await self.stats()
        self._calls.call(self._client.purge_queue, {})
        self._held.clear()
        return before.pending + before.in_flight + before.delayed

    async def stats(self) -> QueueStats:
        """Return SQS's counts, which are approximate and about a minute old."""
        attributes = self._attributes([*COUNTS, "RedrivePolicy"])
        pending, in_flight, delayed = (int(attributes.get(name, 0)) for name in COUNTS)
        self.redrive_policy = _redrive(attributes.get("RedrivePolicy"))
        if in_flight >= MOST_IN_FLIGHT * 0.95:
            logger.warning(
                "%s: %d messages are in flight; at about %d SQS delivers no more, and a long "
                "poll then returns nothing",
                self._place,
                in_flight,
                MOST_IN_FLIGHT,
            )
        return QueueStats(pending, in_flight, delayed, None)

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Raise: SQS shows messages only to consumers that receive them."""
        raise UnsupportedOperationError(
            f"{self._place}: SQS cannot show messages without receiving them"
        )

    def listen(self, *, in_loop: bool = False) -> LongPollListener:
        """Return a new listener."""
        if self._pid != os.getpid():
            # A forked child does not have the parent's polling threads.
            self._polls, self._pid = LongPolls(self), os.getpid()
        return LongPollListener(self._polls, in_loop=in_loop)

    def close(self) -> None:
        """Do nothing: the caller who made the client closes it."""

    def _check(self, messages: Sequence[Outgoing], entries: Sequence[SendEntry]) -> None:
        """Refuse what SQS would refuse, before anything is sent."""
        if self.fifo and any(message.delay for message in messages):
            raise InvalidParameterError(
                f"{self._place}: delay_seconds must be 0: a FIFO queue cannot delay one message; "
                f"set DelaySeconds on the queue"
            )
        largest = max(entry.size for entry in entries)
        if largest > self._limit:
            self._limit = self._ask_limit()
        if largest > self._limit:
            raise PayloadTooLargeError(
                f"nothing was sent: with its attributes the message has {largest} bytes, "
                f"{self._place} takes {self._limit}; send a reference to it instead"
            )

    def _ask_limit(self) -> int:
        try:
            answer = self._attributes(["MaximumMessageSize"])
        except MailboxConnectionError:
            return LARGEST  # not allowed to ask: SQS refuses what is too large
        return int(answer.get("MaximumMessageSize", LARGEST))

    def _sendable(self, message: Outgoing, entry: SendEntry) -> dict[str, Any]:
        request: dict[str, Any] = {
            "MessageBody": entry.body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value}
                for name, value in entry.attributes.items()
            },
        }
        group = entry.group or self._group
        if group is not None:
            request["MessageGroupId"] = group
        if self.fifo:
            request["MessageDeduplicationId"] = message.id
        elif message.delay:  # or else the queue's own delay counts
            request["DelaySeconds"] = math.ceil(message.delay)
        return request

    def _send(self, entries: Entries) -> dict[int, MailboxError]:
        """Make one call and return the errors of the entries that failed."""
        try:
            failed = self._calls.batch(self._client.send_message_batch, entries)
        except MailboxError as error:
            return dict.fromkeys(entries, error)
        return {n: _send_error(self._place, fault) for n, fault in failed.items()}

    def _settle(
        self,
        method: Callable[..., Any],
        handles: Sequence[str],
        seconds: float | None,
        keep: bool = False,
    ) -> list[bool]:
        """Delete messages or change when they are visible; False where the lease had ended."""
        now = self.clock.monotonic()
        done = [False] * len(handles)
        entries: Entries = {}
        for n, held in enumerate(self._held.of(handles, now)):
            if held is not None and (seconds is None or held.longest(now) >= 0):
                entries[n] = _settling(handles[n], held, seconds, now)
        for batch in in_tens(entries):
            failed = self._calls.batch(method, batch)
            for n, entry in batch.items():
                if n in failed and plain_code(failed[n].get("Code")) not in LEASE_ENDED:
                    raise MailboxConnectionError(
                        f"{self._place} could not settle a message: {failed[n].get('Code')}"
                    )
                done[n] = n not in failed
                if done[n] and keep:
                    self._held.prolong(handles[n], now + entry["VisibilityTimeout"])
        if not keep:
            # Only now, because if a later call fails, the caller may settle all of them again.
            self._held.drop(handles)
        return done

    def _attributes(self, names: list[str]) -> dict[str, str]:
        answer = self._calls.call(self._client.get_queue_attributes, {"AttributeNames": names})
        return answer.get("Attributes", {})  # type: ignore[no-any-return]


def _leased(received: dict[str, Any]) -> Leased:
    id, payload = to_payload(received)
    facts = received.get("Attributes", {})
    sent = int(facts.get("SentTimestamp", 0)) / 1000
    return Leased(
        id,
        received["ReceiptHandle"],
        payload,
        int(facts.get("ApproximateReceiveCount", 1)),
        0,
        sent,
        int(facts.get("ApproximateFirstReceiveTimestamp", 0)) / 1000 or sent,
    )


def _settling(handle: str, held: HeldLease, seconds: float | None, now: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"ReceiptHandle": handle}
    if seconds is not None:
        entry["VisibilityTimeout"] = min(math.ceil(seconds), held.longest(now))
    return entry


def _send_error(place: Place, fault: dict[str, Any]) -> MailboxError:
    code, text = fault.get("Code", ""), fault.get("Message", "")
    if "must be shorter than" in text:
        return PayloadTooLargeError(f"nothing was sent: {place} says: {text}")
    if not fault.get("SenderFault", True):
        return MailboxConnectionError(f"{place} could not take a message ({code}); try again")
    return MailboxError(f"{place} refused a message with {code}: {text}")


def _redrive(policy: str | None) -> dict[str, Any] | None:
    try:
        return dict(json.loads(policy)) if policy else None
    except ValueError:
        return None
