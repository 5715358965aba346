"""What is said of a queue is true, and is said only then."""

from dataclasses import replace

from weakincentives.dashboard.trouble import Badge, Look, Severity, verdict_of
from weakincentives.runtime.mailbox import MailboxStats


def look(at: float, pending: int, in_flight: int = 0, age: float | None = None) -> Look:
    return Look(at, MailboxStats(pending, in_flight, 0, age if pending else None))


def every_ten_seconds(*pendings: int) -> list[Look]:
    return [look(10.0 * n, pending, age=10.0 * n) for n, pending in enumerate(pendings)]


def test_nothing_is_said_of_a_queue_that_was_seen_once() -> None:
    verdict = verdict_of([look(0, 5, age=1)])
    assert (verdict.change, verdict.drain_seconds, verdict.badges) == (None, None, ())


def test_a_queue_that_shrinks_is_empty_after_a_while() -> None:
    verdict = verdict_of([look(0, 30, age=9), look(10, 20, age=9)])
    assert verdict.change == -1
    assert verdict.drain_seconds == 20


def test_no_progress_means_that_the_same_message_is_first_and_nobody_works() -> None:
    stuck = every_ten_seconds(3, 3, 4, 4, 5, 5, 5)
    assert verdict_of(stuck).stuck_seconds == 60
    assert Badge.NO_PROGRESS in verdict_of(stuck).badges
    assert verdict_of(stuck).severity == Severity.ALARM

    assert Badge.NO_PROGRESS not in verdict_of(stuck[:-1]).badges, "not for long enough"
    working = [*stuck[:3], look(30, 4, in_flight=1, age=30), *stuck[4:]]
    assert Badge.NO_PROGRESS not in verdict_of(working).badges, "somebody held a message"
    taken = [*stuck[:3], *(look(one.at, 4, age=one.at - 5) for one in stuck[3:])]
    assert Badge.NO_PROGRESS not in verdict_of(taken).badges, "the oldest message was taken"
    fewer = [*stuck[:3], *(look(one.at, 2, age=one.at) for one in stuck[3:])]
    assert Badge.NO_PROGRESS not in verdict_of(fewer).badges, "there are fewer than before"
    rare = [look(0, 3, age=0), look(100, 3, age=100)]
    assert Badge.NO_PROGRESS not in verdict_of(rare).badges, "two looks prove nothing"


def test_no_consumer_means_that_no_worker_serves_it_and_nothing_moves() -> None:
    still = every_ten_seconds(3, 3, 3, 3)
    assert verdict_of(still, places=0).badges == (Badge.NO_CONSUMER,)
    assert verdict_of(still, places=4).badges == (), "a worker may be slow for half a minute"
    assert verdict_of(still, places=None).badges == (), "nobody knows"
    assert verdict_of(still[:2], places=0).badges == (), "it may just have been sent"
    taken = [look(one.at, 3, age=5) for one in still]
    assert verdict_of(taken, places=0).badges == (), "a program receives without a loop"


def test_a_paused_queue_is_said_to_be_paused_and_nothing_else() -> None:
    paused = [Look(one.at, replace(one.stats, paused=True)) for one in every_ten_seconds(*[3] * 9)]
    assert verdict_of(paused, places=0).badges == (Badge.PAUSED,)


def test_dead_letters_wait_for_people_and_are_not_stuck() -> None:
    badges = verdict_of(every_ten_seconds(*[3] * 9), has_letters=True).badges
    assert badges == (Badge.DEAD_LETTERS,)
    assert verdict_of([look(0, 0)], has_letters=True).badges == ()


def test_one_burst_is_no_growth() -> None:
    burst = [look(at, 0 if at < 15 else 50, in_flight=1, age=1) for at in (0, 5, 10, 15, 20, 25)]
    steady = [look(at, at, in_flight=1, age=1) for at in (0, 5, 10, 15, 20, 25)]
    assert Badge.GROWING not in verdict_of(burst).badges
    assert Badge.GROWING in verdict_of(steady).badges
