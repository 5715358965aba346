"""What becomes of an attempt, decided without any mailbox: the rules, row by row."""

import ast
import math
from itertools import product
from pathlib import Path

import pytest

from weakincentives.adapters import RateLimitError, VisibilityExpansionRequired
from weakincentives.runtime import (
    BudgetExceededError,
    DeadlineExceededError,
    LeaseLostError,
    RepeatedCrashError,
    RetryAfter,
    TimeLimitExceededError,
)
from weakincentives.runtime.mailbox import (
    MailboxConnectionError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from weakincentives.runtime.mailbox.errors import NoRoomError
from weakincentives.runtime.worker import decide
from weakincentives.runtime.worker.decide import (
    Abandon,
    Acknowledge,
    Counts,
    Ending,
    Fail,
    GiveBack,
    PutOff,
    Remove,
    Reply,
    Retry,
    Run,
    Settled,
    Skip,
    TellSender,
    Thresholds,
    ToDeadLetters,
)

DELAY = 7.0
RETRY = Retry(DELAY)
ERROR = ValueError("no")
DOWN = MailboxConnectionError("down")
FULL = NoRoomError("full")
EXPIRED = ReceiptHandleExpiredError("over")
YES_NO = (True, False)


# --- before the run -------------------------------------------------------------------------


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
def test_who_is_given_up_unread(deliveries, nacks, thresholds, expected):
    assert decide.is_given_up(Counts(deliveries, nacks), thresholds) is expected


@pytest.mark.parametrize("nacks", [0, None])
@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("has_excluded", YES_NO)
def test_a_first_delivery_is_never_given_up(nacks, most, has_excluded):
    """So a worker need not ask about it."""
    assert not decide.is_given_up(Counts(1, nacks), Thresholds(most, most, has_excluded))


@pytest.mark.parametrize(
    ("deliveries", "nacks", "most", "crashed", "alone"),
    [
        (1, 0, 5, 0, False),
        (2, 0, 5, 1, False),
        (3, 0, 5, 2, False),
        (4, 0, 5, 3, True),
        (5, 4, 5, 0, False),
        (5, 0, 5, 4, True),
        (2, 0, 3, 1, True),
        (9, 4, 5, 4, True),
        (6, 0, 5, 5, False),  # too late: it is given up unread
        (2, 0, 2, 1, True),
        (1, 0, 1, 0, False),  # every message would be, and none could run beside another
        (101, 96, 5, 4, False),
        (21, 20, 5, 0, False),  # put off twenty times: that counts as nacks too
        (22, 20, 5, 1, False),
    ],
)
def test_who_is_suspected(deliveries, nacks, most, crashed, alone):
    counts = Counts(deliveries, nacks)
    assert decide.crashes(counts) == crashed
    assert decide.must_run_alone(counts, Thresholds(most, 100)) is alone


@pytest.mark.parametrize(
    ("error", "gone", "readable", "expected"),
    [
        (None, False, True, Run()),
        (None, True, True, Skip()),  # cancelled or expired: nobody waits
        (ERROR, False, True, Fail(ERROR)),  # a reply_to that cannot be resolved
        (ERROR, False, False, Fail(ERROR, readable=False)),
        (DOWN, False, True, RETRY),  # whether a caller waits cannot be asked
        (FULL, False, True, RETRY),
        (OSError("cut"), False, True, RETRY),
    ],
)
def test_before_a_run(error, gone, readable, expected):
    facts = {"error": error, "gone": gone, "readable": readable, "pause": DELAY}
    assert decide.before_run(crashed=None, **facts) == expected
    # whatever the rest is, repeated crashes come first
    given_up = decide.before_run(crashed=6, **facts)
    assert isinstance(given_up, Fail)
    assert isinstance(given_up.error, RepeatedCrashError)
    assert "received 6 times" in str(given_up.error)


# --- after the run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "answers", "expected"),
    [
        (False, False, Acknowledge()),
        (False, True, Reply(3)),
        (True, False, Abandon()),
        (True, True, Abandon()),
    ],
)
def test_after_a_return(lost, answers, expected):
    assert decide.after_return(3, lost=lost, answers=answers) == expected


INF = math.inf
LATER = RetryAfter(30)
BUSY = RateLimitError(retry_after=30)
GROUP = ExceptionGroup("all busy", [RetryAfter(5), BUSY, ExceptionGroup("", [RetryAfter(7)])])
MIXED = ExceptionGroup("not only", [LATER, ERROR])


@pytest.mark.parametrize(
    ("error", "longest", "expected"),
    [
        (ERROR, INF, None),
        (LATER, INF, 30),
        (RetryAfter(0), INF, 0),
        (BUSY, INF, 30),
        (BUSY, 20, 20),  # as late as the mailbox can
        (RateLimitError(), INF, None),
        (RateLimitError(retry_after=0), INF, 0),
        (RateLimitError(retry_after=-1), INF, None),
        (RateLimitError(retry_after=INF), 20, 20),
        (RateLimitError(retry_after=math.nan), INF, None),
        (RateLimitError(retry_after="30"), INF, None),
        (GROUP, INF, 30),
        (MIXED, INF, None),
    ],
)
def test_who_asks_to_be_delivered_again(error, longest, expected):
    assert decide.asked_delay(error, longest) == expected


@pytest.mark.parametrize(
    ("thresholds", "counted_apart", "expected"),
    [
        (None, True, INF),
        (None, False, INF),
        (Thresholds(5, 100), True, 99),
        (Thresholds(5, 100), False, 4),
        (Thresholds(5, 100, has_excluded=True), False, 99),
    ],
)
def test_how_often_a_message_can_be_put_off(thresholds, counted_apart, expected):
    assert decide.most_put_off(thresholds, counted_apart=counted_apart) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, PutOff(30)),
        ({"deliveries": 99, "most": 99}, PutOff(30)),
        ({"deliveries": 100, "most": 99}, Fail(LATER)),
        ({"age": 86_400.0}, PutOff(30)),
        ({"age": 86_401.0}, Fail(LATER)),
        ({"left": 31.0}, PutOff(30)),
        ({"answered": True}, Fail(LATER)),  # there is nothing left that could be delivered again
        ({"lost": True}, Abandon()),
        ({"lost": True, "left": 0.0, "age": INF}, Abandon()),
    ],
)
def test_after_a_handler_asked_for_its_message_again(facts, expected):
    assert decide.after_retry_after(LATER, 30, max_put_off=86_400.0, **facts) == expected


@pytest.mark.parametrize("left", [30.0, 1.0, -1.0])
def test_nobody_is_put_off_for_longer_than_its_caller_waits(left):
    outcome = decide.after_retry_after(LATER, 30, left=left, max_put_off=86_400.0)
    assert isinstance(outcome, Fail)
    assert isinstance(outcome.error, DeadlineExceededError)
    assert outcome.error.__cause__ is LATER


@pytest.mark.parametrize("cause", [None, ERROR, LATER])
def test_at_the_time_limit_a_job_has_failed_whatever_it_makes_of_that(cause):
    outcome = decide.at_time_limit(30, cause)
    assert isinstance(outcome, Fail)
    assert isinstance(outcome.error, TimeLimitExceededError)
    assert "30 s" in str(outcome.error)
    assert outcome.error.__cause__ is cause
    assert decide.asked_delay(outcome.error) is None


@pytest.mark.parametrize("verdict", [None, True, False])
def test_what_is_acknowledged_by_its_reply_is_not_tried_again(verdict):
    facts = {"verdict": verdict, "can_tell": False, "delay": DELAY}
    assert decide.after_failure(ERROR, 1, answered=True, **facts) == Acknowledge()


@pytest.mark.parametrize(
    ("error", "deliveries", "readable", "verdict", "can_tell", "expected"),
    [
        # no policy: tell whoever can be told, else try again
        (ERROR, 1, True, None, True, TellSender()),
        (ERROR, 1, True, None, False, RETRY),
        (ERROR, 50, True, None, False, RETRY),
        (SystemExit(3), 1, True, None, True, TellSender()),
        (DeadlineExceededError(), 1, True, None, True, TellSender()),
        (DeadlineExceededError(), 1, True, None, False, RETRY),
        # a body that cannot be read: another worker may know how
        (ERROR, 1, False, None, True, RETRY),
        (ERROR, 1, False, None, False, RETRY),
        # not a failure at all
        (VisibilityExpansionRequired(), 1, True, None, True, RETRY),
        (VisibilityExpansionRequired(), 7, True, True, True, RETRY),
        # a policy decides, and tells nobody before the end
        (ERROR, 1, True, False, True, RETRY),
        (ERROR, 1, True, False, False, RETRY),
        (ERROR, 1, True, True, True, ToDeadLetters()),
        (ERROR, 1, True, True, False, ToDeadLetters()),
        # where trying again cannot help, its word does not count
        (ERROR, 1, False, False, True, ToDeadLetters()),
        (DeadlineExceededError(), 1, True, False, True, ToDeadLetters()),
        (RepeatedCrashError(), 1, True, False, True, ToDeadLetters()),
        (BudgetExceededError(), 1, True, False, True, ToDeadLetters()),
        # whatever the policy says, there is an end
        (ERROR, 99, True, False, True, RETRY),
        (ERROR, 100, True, False, True, ToDeadLetters()),
        (VisibilityExpansionRequired(), 100, True, False, True, ToDeadLetters()),
    ],
)
def test_after_a_failure(error, deliveries, readable, verdict, can_tell, expected):
    facts = {"readable": readable, "verdict": verdict, "can_tell": can_tell, "delay": DELAY}
    assert decide.after_failure(error, deliveries, **facts) == expected
    # who has lost the lease says nothing more
    assert decide.after_failure(error, deliveries, lost=True, **facts) == Abandon()


@pytest.mark.parametrize(
    ("readable", "verdict", "can_tell"), list(product(YES_NO, (True, False, None), YES_NO))
)
def test_a_failure_is_never_acknowledged_in_silence(readable, verdict, can_tell):
    outcome = decide.after_failure(
        ERROR, 1, readable=readable, verdict=verdict, can_tell=can_tell, delay=DELAY
    )
    if verdict is None:
        told = can_tell and readable
        assert outcome == (TellSender() if told else RETRY)
    else:
        assert outcome == (ToDeadLetters() if verdict or not readable else RETRY)


@pytest.mark.parametrize(
    ("sent", "can_tell", "awaited", "expected"),
    [
        # a letter that could not be sent: nobody is told, and nothing acknowledged
        *((False, can_tell, awaited, RETRY) for can_tell, awaited in product(YES_NO, YES_NO)),
        # letter, then reply, then acknowledgement
        (True, True, True, TellSender(dead_lettered=True)),
        (True, True, False, TellSender(dead_lettered=True)),
        (True, False, True, Remove()),
        (True, False, False, Acknowledge()),
    ],
)
def test_after_a_dead_letter(sent, can_tell, awaited, expected):
    outcome = decide.after_dead_letter(sent=sent, can_tell=can_tell, awaited=awaited, delay=DELAY)
    assert outcome == expected


@pytest.mark.parametrize(
    ("dead_lettered", "awaited", "expected"),
    [
        (False, True, RETRY),
        (False, False, RETRY),
        (True, True, Remove()),
        (True, False, Acknowledge()),
    ],
)
def test_after_an_error_reply_that_could_not_be_made(dead_lettered, awaited, expected):
    outcome = decide.after_error_reply_failed(
        dead_lettered=dead_lettered, awaited=awaited, delay=DELAY
    )
    assert outcome == expected


# --- an answer that could not be sent -------------------------------------------------------

ERRORS = {
    "refused": EXPIRED,
    "lease lost": LeaseLostError("over"),
    "full": FULL,
    "unreachable": DOWN,
    "cut off": OSError("cut"),
    "unsendable": SerializationError("what is it?"),
}

# ending (* = any), the error, whether there is a policy (* = either), what is done
UNSENT = [
    ("dead-lettered", "full unreachable cut-off unsendable", "*", "acknowledge"),
    ("returned", "full", "*", "give back"),
    ("failed", "full", "*", "give back"),
    ("returned", "unreachable cut-off", "no", "retry"),
    ("returned", "unreachable cut-off", "yes", "fail"),
    ("returned", "unsendable", "*", "fail"),
    ("failed", "unreachable cut-off unsendable", "no", "retry"),
    # with a policy nobody is told of a failure before it is a dead letter: this does not happen
    ("failed", "unreachable cut-off unsendable", "yes", "fail"),
]


def unsent_row(ending, error, has_policy):
    (found,) = [
        what
        for of, errors, policy, what in UNSENT
        if of == ending.value
        and error.replace(" ", "-") in errors.split()
        and policy in ("*", "yes" if has_policy else "no")
    ]
    return found


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("error", ERRORS)
def test_after_an_answer_could_not_be_sent(ending, error):
    for awaited, in_doubt, lost, has_policy in product(YES_NO, YES_NO, YES_NO, YES_NO):
        outcome = decide.after_unsent(
            ERRORS[error],
            ending=ending,
            awaited=awaited,
            in_doubt=in_doubt,
            lost=lost,
            has_policy=has_policy,
            delay=DELAY,
        )
        if error in ("refused", "lease lost"):
            # a reply to a caller acknowledges too, so a repeat of it is refused if it came through
            came_through = awaited and in_doubt and not lost
            assert outcome == (Settled() if came_through else Abandon())
            continue
        assert (
            outcome
            == {
                "acknowledge": Remove() if awaited else Acknowledge(),
                "give back": GiveBack(DELAY),
                "retry": RETRY,
                "fail": Fail(ERRORS[error]),
            }[unsent_row(ending, error, has_policy)]
        )


# --- settling -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_doubt", "lost", "expected"),
    [
        (False, False, Abandon()),
        (False, True, Abandon()),
        (True, False, Settled()),  # an earlier step was cut off, and may have happened
        (True, True, Abandon()),
    ],
)
def test_after_a_refusal(in_doubt, lost, expected):
    assert decide.after_refusal(in_doubt=in_doubt, lost=lost) == expected


@pytest.mark.parametrize(
    ("left", "lost", "stopping"), list(product((60.0, 0.0, -0.1), YES_NO, YES_NO))
)
def test_a_step_is_repeated_while_time_is_left_unless_it_is_of_no_use(left, lost, stopping):
    expected = left >= 0 and not lost and not stopping
    assert decide.is_worth_repeating(left=left, lost=lost, stopping=stopping) is expected


def test_at_the_deadline_of_a_shutdown():
    assert decide.at_deadline(ended=True) == Acknowledge()
    assert decide.at_deadline(ended=False) == GiveBack(0.0)


@pytest.mark.parametrize(
    ("begun", "from_outside", "expected"),
    [
        (True, False, Retry(0.0)),  # it may end every worker that takes it, so that counts
        (True, True, GiveBack(0.0)),
        (False, False, GiveBack(0.0)),
        (False, True, GiveBack(0.0)),
    ],
)
def test_when_a_thread_is_cut_off(begun, from_outside, expected):
    assert decide.when_cut_off(begun=begun, from_outside=from_outside) == expected


# --- and nothing else -----------------------------------------------------------------------


def test_deciding_reads_no_clock_and_knows_no_mailbox():
    tree = ast.parse(Path(decide.__file__).read_text(encoding="utf-8"))
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {
        "collections.abc",
        "dataclasses",
        "enum",
        "errors",
        "math",
        "typing",
        "weakincentives.adapters.errors",
        "weakincentives.errors",
        "weakincentives.runtime.budget",
        "weakincentives.runtime.mailbox.errors",
        "weakincentives.runtime.mailbox.limits",
    }
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
