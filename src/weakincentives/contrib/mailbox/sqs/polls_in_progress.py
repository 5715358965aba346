"""The long polls of this process, and which of them it waits for before it exits.

SQS does not notice at once that a client is gone. A poll that ends with its process can still lease
a message, which then comes back only when that lease is over. If that is soon, nobody waits.
"""

import atexit
import os
import threading
import time

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

__all__ = ["POLLS_IN_PROGRESS", "PollInProgress", "PollsInProgress", "end_of"]

logger = get_logger(__name__)

ANSWER_WITHIN = 5.0
"""A poll that is this many seconds late is not waited for any longer."""


class PollInProgress:
    """One call of ReceiveMessage, until what it leased is handed on or given back."""

    def __init__(self, wait: float, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        """Whether to wait for it: what it leases would be missing for long."""
        self.began = time.monotonic()
        self.latest_end = self.began + wait + ANSWER_WITHIN
        self.over = threading.Event()


class PollsInProgress:
    """All polls of this process; once it exits, there are no new ones."""

    def __init__(self) -> None:
        self.reset()
        self.exiting = False

    def reset(self) -> None:
        """Begin without polls, as a forked child must."""
        self._polls: set[PollInProgress] = set()

    def __len__(self) -> int:
        return len(self._polls)

    def begin(self, wait: float, is_kept: bool = True) -> PollInProgress:
        """Record a poll; `end` must follow."""
        poll = PollInProgress(wait, is_kept)
        self._polls.add(poll)
        return poll

    def end(self, poll: PollInProgress) -> None:
        """Forget a poll."""
        self._polls.discard(poll)
        poll.over.set()

    def finish(self) -> None:
        """Wait for the polls, within the deadline of the shutdown; they give back all they get."""
        self.exiting = True
        kept = [poll for poll in tuple(self._polls) if poll.is_kept]
        polls = {poll: end_of(poll, StopSignal.latest_deadline) for poll in kept}
        now = time.monotonic()
        if not polls or max(polls.values()) <= now:
            return
        logger.info(
            "waiting up to %.0f s for %d long polls, so that SQS leases nothing to a process "
            "that is gone; Ctrl-C ends this",
            max(polls.values()) - now,
            len(polls),
        )
        try:
            for poll, end in polls.items():
                poll.over.wait(max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            logger.warning("what the long polls lease now comes back when its lease is over")


def end_of(poll: PollInProgress, deadline: float) -> float:
    """Return until when to wait for a poll; an earlier shutdown's deadline does not count."""
    return min(poll.latest_end, deadline) if deadline > poll.began else poll.latest_end


# One for the whole process, because the process exits as a whole.
POLLS_IN_PROGRESS = PollsInProgress()
atexit.register(POLLS_IN_PROGRESS.finish)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POLLS_IN_PROGRESS.reset)
