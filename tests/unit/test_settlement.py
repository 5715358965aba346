"""What becomes of a message, decided without any mailbox."""

import pytest

from weakincentives.adapters import VisibilityExpansionRequired
from weakincentives.runtime import (
    Backoff,
    BudgetExceededError,
    DeadlineExceededError,
    RepeatedCrashError,
)
from weakincentives.runtime.settlement import (
    Counts,
    Retry,
    TellAndAck,
    Thresholds,
    ToDeadLetters,
    after_failure,
    unread,
)

BACKOFF = Backoff(base=10, cap=100, jitter=False)
RETRY = Retry(10)
TELL = TellAndAck()
DEAD = ToDeadLetters()
ERROR = ValueError("no")


@pytest.mark.parametrize(
    ("error", "deliveries", "readable", "verdict", "can_tell", "expected"),
    [
        # no policy: tell whoever can be told, else try again
        (ERROR, 1, True, None, True, TELL),
        (ERROR, 1, True, None, False, RETRY),
        (ERROR, 50, True, None, False, Retry(100)),
        (SystemExit(3), 1, True, None, True, TELL),
        (DeadlineExceededError(), 1, True, None, True, TELL),
        (DeadlineExceededError(), 1, True, None, False, RETRY),
        # a body that cannot be read: another worker may know how
        (ERROR, 1, False, None, True, RETRY),
        (ERROR, 1, False, None, False, RETRY),
        # not a failure at all
        (VisibilityExpansionRequired(), 1, True, None, True, RETRY),
        (VisibilityExpansionRequired(), 7, True, True, True, Retry(100)),
        # a policy decides, and tells nobody before the end
        (ERROR, 1, True, False, True, RETRY),
        (ERROR, 1, True, False, False, RETRY),
        (ERROR, 1, True, True, True, DEAD),
        (ERROR, 1, True, True, False, DEAD),
        # where trying again cannot help, the policy is not asked
        (ERROR, 1, False, False, True, DEAD),
        (DeadlineExceededError(), 1, True, False, True, DEAD),
        (RepeatedCrashError(), 1, True, False, True, DEAD),
        (BudgetExceededError(), 1, True, False, True, DEAD),
        # whatever the policy says, there is an end
        (ERROR, 99, True, False, True, Retry(100)),
        (ERROR, 100, True, False, True, DEAD),
        (VisibilityExpansionRequired(), 100, True, False, True, DEAD),
    ],
)
def test_after_a_failure(error, deliveries, readable, verdict, can_tell, expected):
    settled = after_failure(
        error,
        deliveries,
        readable=readable,
        verdict=verdict,
        can_tell=can_tell,
        backoff=BACKOFF,
    )
    assert settled == expected


@pytest.mark.parametrize(
    ("deliveries", "nacks", "thresholds", "expected"),
    [
        # received five times before, each worker died: the sixth does not look
        (5, 0, Thresholds(5, 100), False),
        (6, 0, Thresholds(5, 100), True),
        # what was given back was not a crash
        (6, 1, Thresholds(5, 100), False),
        (50, 49, Thresholds(5, 100), False),
        (50, 44, Thresholds(5, 100), True),
        (1, 0, Thresholds(1, 100), False),
        (2, 0, Thresholds(1, 100), True),
        # the absolute limit counts everything
        (100, 99, Thresholds(5, 100), False),
        (101, 100, Thresholds(5, 100), True),
        # nobody counts nacks: deliveries have to do
        (5, None, Thresholds(5, 100), False),
        (6, None, Thresholds(5, 100), True),
        (6, None, Thresholds(5, 100, has_excluded=True), False),
        (101, None, Thresholds(5, 100, has_excluded=True), True),
    ],
)
def test_before_running(deliveries, nacks, thresholds, expected):
    assert unread(Counts(deliveries, nacks), thresholds) is expected
