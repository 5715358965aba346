"""A mailbox as a loop sees it: ours with all its powers, or anybody's that can receive."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from weakincentives.runtime.mailbox import Limits, ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.limits import is_number
from weakincentives.runtime.mailbox.receiving import exchange
from weakincentives.runtime.mailbox.typed import StoreMailbox
from weakincentives.runtime.mailbox.waiting import StopSignal

from .lease_extender import Lease

__all__ = ["NOTHING", "Job", "Source"]

NOTHING: Any = object()
FOREIGN_WAIT = 1.0


class Job:
    """A message in a loop's hands, from its receipt until its settlement has finished."""

    # Of the class until they change: most jobs need none of them.
    via: str | None = None
    """How the sender can be told: ``channel``, ``reply_to``, ``responses`` or not at all."""
    body: Any = NOTHING
    answer: Any = NOTHING
    """What is still to be replied before the acknowledgement."""
    answer_error: BaseException | None = None
    readable = True
    failed = False
    dead_lettered = False
    acknowledged = False
    """Said of messages that do not know it themselves."""
    uncertain = False
    """An acknowledgement was cut off: nobody knows whether it has happened."""
    exit: BaseException | None = None
    """The handler asked to end the process."""

    def __init__(self, message: Any, lease: Lease) -> None:
        self.message = message
        self.lease = lease

    @property
    def settled(self) -> bool:
        """Whether the mailbox has confirmed that this is done."""
        return self.acknowledged or getattr(self.message, "is_finalized", False)

    @property
    def deliveries(self) -> int:
        """How many times the message has been received."""
        count: int = getattr(self.message, "delivery_count", 1)
        return count


class Source:
    """Where a loop's messages come from."""

    def __init__(self, mailbox: Any) -> None:
        self.mailbox = mailbox
        self.name: str = getattr(mailbox, "name", "-")
        self.limits: Limits = getattr(mailbox, "limits", None) or Limits()
        self.counts_nacks: bool = getattr(
            getattr(mailbox, "capabilities", None), "nack_counts", True
        )
        self._ours = isinstance(mailbox, StoreMailbox)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return bool(getattr(self.mailbox, "closed", False))

    def check(self, count: int, visibility: float, wait: float) -> tuple[int, float, float]:
        """Check what a loop is going to ask for, once; where seconds must be whole, round up."""
        if not self.limits.fractions and is_number(visibility) and is_number(wait):
            visibility, wait = math.ceil(visibility), math.ceil(wait)
        if self._ours and self.mailbox.store.steps == "awaited":
            raise self.mailbox.only_async("exchange")
        return self.limits.receive(count, visibility, wait)

    def take(
        self,
        done: Sequence[Job],
        count: int,
        visibility: float,
        wait: float,
        stop: StopSignal,
        first: Callable[[], object] | None = None,
    ) -> Any:
        """Call ``first``, acknowledge what is done, and receive: in one step where possible.

        The numbers are those that `check` returned.
        """
        if not self._ours:
            if first is not None:
                first()
            self.acknowledge(done)
            return self._receive(count, visibility, wait, stop)
        messages = [job.message for job in done]
        return exchange(self.mailbox, messages, count, visibility, wait, first, stop)

    def acknowledge(self, jobs: Sequence[Job]) -> None:
        """Acknowledge what is done."""
        if self._ours:
            # In one step, which also skips the check for a reply: the loop has decided that.
            self.mailbox.acknowledge_batch([job.message for job in jobs])
            return
        for job in jobs:
            if not job.settled:
                try:
                    job.message.acknowledge()
                except ReceiptHandleExpiredError:
                    continue
                job.acknowledged = True

    def remove(self, job: Job) -> None:
        """Acknowledge a message although its sender waits for a reply that will not come."""
        if not self._ours:
            job.message.acknowledge()
            return
        (done,) = self.mailbox.store.acknowledge([job.message.receipt_handle])
        job.message.settled("acknowledged", done)

    def give_back(self, job: Job, delay: float) -> None:
        """Give a message back, to be received again after ``delay`` seconds."""
        nack = getattr(job.message, "nack", None)
        if nack is not None:  # without it, the lease runs out by itself
            nack(visibility_timeout=self.limits.rounded(delay))

    def _receive(self, count: int, visibility: float, wait: float, stop: StopSignal) -> Any:
        """Receive from a mailbox that cannot be interrupted: in waits of a second."""
        while True:
            messages = self.mailbox.receive(
                max_messages=count,
                visibility_timeout=visibility,
                wait_time_seconds=min(wait, FOREIGN_WAIT),
            )
            wait -= FOREIGN_WAIT
            if messages or wait <= 0 or stop.is_set() or self.closed:
                return messages
