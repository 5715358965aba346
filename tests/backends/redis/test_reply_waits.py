"""How long a waiter blocks at the server before it looks again."""

import time

import pytest

from weakincentives.contrib.mailbox.redis.replies import (
    FIRST_BLOCK,
    LONGEST_BLOCK,
    SOONEST_LOOK,
    _longest_block,
)
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow, ReplyState


def pending(expires_in: float) -> ReplyRow:
    now = time.time()
    return ReplyRow("reply", ReplyState.PENDING, None, now, now + expires_in, None)


def test_a_waiter_looks_again_when_its_reply_expires() -> None:
    assert _longest_block(pending(2.0)) == pytest.approx(2.0, abs=1.0)
    assert _longest_block(pending(3600.0)) == LONGEST_BLOCK


def test_a_clock_that_is_ahead_makes_no_waiter_spin() -> None:
    assert _longest_block(pending(-100.0)) == SOONEST_LOOK > 0


def test_the_first_block_is_short_because_the_expiry_is_not_known_yet() -> None:
    assert FIRST_BLOCK < LONGEST_BLOCK
