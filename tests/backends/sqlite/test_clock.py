"""Wall-clock jumps do nothing within a boot; after a reboot leases are over and delays go on."""

from collections.abc import Callable

import pytest

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteReplyStore, SQLiteStore
from weakincentives.contrib.mailbox.sqlite.clock import Era, next_era
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

HOUR = 3600.0


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 10 * 365 * 24 * HOUR])
def test_a_jump_of_the_wall_clock_moves_no_lease_and_no_delay(
    store: SQLiteStore, clock: TwoClocks, jump: float
) -> None:
    store.put_now((Outgoing("leased", b"1"), Outgoing("delayed", b"2", 60.0)))
    (leased,) = store.lease_now(1, 30).messages
    clock.jump(jump)
    clock.advance(29)
    assert not store.lease_now(5, 30).messages
    assert driven(store.extend((leased.handle,), 40)) == (True,)
    clock.advance(31)
    assert [message.id for message in store.lease_now(5, 30).messages] == ["delayed"]
    clock.advance(9)
    assert store.acknowledge_now((leased.handle,)) == (False,)
    assert [message.id for message in store.lease_now(5, 30).messages] == ["leased"]


def test_a_second_process_that_opens_after_a_jump_reads_the_same_clock(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    first = opened()
    clock.jump(HOUR)
    second = opened()
    assert first.time.now_us() == second.time.now_us()


def test_after_a_reboot_leases_are_over_and_delays_continue_by_the_wall_clock(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    store = SQLiteStore(opened(), "jobs")
    store.put_now(
        (Outgoing("leased", b"1"), Outgoing("soon", b"2", 60.0), Outgoing("late", b"3", 600))
    )
    (leased,) = store.lease_now(1, HOUR).messages
    clock.advance(10)
    clock.reboot(seconds_off=100)
    rebooted = SQLiteStore(opened("second boot"), "jobs")
    assert driven(rebooted.stats())[:3] == (2, 0, 1)
    assert rebooted.acknowledge_now((leased.handle,)) == (False,)
    again = rebooted.lease_now(5, 30)
    assert {message.id for message in again.messages} == {"leased", "soon"}
    assert again.expired == 1
    assert rebooted.lease_now(5, 30).next_due == pytest.approx(30, abs=0.01)
    clock.advance(489)
    assert "late" not in {message.id for message in rebooted.lease_now(5, HOUR).messages}
    clock.advance(2)
    assert [message.id for message in rebooted.lease_now(5, 30).messages] == ["late"]


def test_a_jump_before_the_reboot_is_not_taken_for_time_that_passed(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    store = SQLiteStore(opened(), "jobs")
    clock.jump(HOUR)  # the clock was wrong; the delay below is written under the right one
    store.put_now((Outgoing("delayed", b"1", 60.0),))
    clock.reboot(seconds_off=10)
    rebooted = SQLiteStore(opened("second boot"), "jobs")
    assert rebooted.lease_now(1, 30).next_due == pytest.approx(50, abs=0.01)


def test_replies_go_on_across_a_reboot(opened: Callable[..., Database], clock: TwoClocks) -> None:
    replies = SQLiteReplyStore[int](opened())
    replies.create("a", ttl=300)
    replies.create("b", ttl=30)
    clock.reboot(seconds_off=100)
    rebooted = SQLiteReplyStore[int](opened("second boot"))
    assert rebooted.scan_expired() == ["b"]
    assert rebooted.resolve("a", 1)
    assert not rebooted.resolve("b", 1)


def test_without_a_boot_id_the_wall_clock_counts(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    store = SQLiteStore(opened(""), "jobs")
    store.put_now((Outgoing("a", b"1"),))
    store.lease_now(1, 60)
    clock.reboot(seconds_off=61)
    rebooted = SQLiteStore(opened(""), "jobs")
    assert [message.delivery_count for message in rebooted.lease_now(1, 60).messages] == [2]


def test_eras() -> None:
    first = next_era(None, "a", 100)
    assert first == Era("a", 100, 100)
    assert next_era(first, "a", 100) is first
    assert next_era(first, "a", 5_000_000) == Era("a", 100, 5_000_000)
    assert next_era(Era("a", 100, 5_000_000), "b", 5_000_300) == Era("b", 400, 5_000_300)


def test_retention_counts_on_the_same_clock(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    store = SQLiteStore(opened(), "jobs", retention=60)
    store.put_now((Outgoing("old", b"1"),))
    clock.jump(HOUR)
    clock.advance(59)
    store.put_now((Outgoing("new", b"2"),))
    assert driven(store.stats()).oldest_age == pytest.approx(59)
    clock.advance(2)
    leases = store.lease_now(5, 30)
    assert [message.id for message in leases.messages] == ["new"]
    assert leases.dropped == 1
    assert driven(store.stats())[:3] == (0, 1, 0)


DAY = 24 * HOUR


@pytest.mark.parametrize("off", [-180 * DAY, -50 * 365 * DAY])
def test_a_boot_with_a_wrong_clock_prolongs_no_delay(
    opened: Callable[..., Database], clock: TwoClocks, off: float
) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    store.put_now((Outgoing("sent", b"1", 60.0), Outgoing("failed", b"2")))
    clock.advance(5 * DAY)
    store.lease_now(5, 30)
    clock.advance(60)
    (first, second) = store.lease_now(5, 30).messages
    driven(store.release((first.handle, second.handle), 60.0))
    database.close()
    clock.reboot(off)
    store = SQLiteStore(opened("second boot"), "jobs")
    assert not store.lease_now(5, 30).messages
    clock.advance(61)
    assert len(store.lease_now(5, 30).messages) == 2
    clock.jump(-off)
    clock.advance(1)
    assert driven(store.stats()).in_flight == 2


def test_the_clock_of_the_file_goes_on_after_a_boot_with_a_wrong_clock(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    first = opened()
    SQLiteStore(first, "jobs").put_now((Outgoing("later", b"1", 60.0),))
    before = first.time.now_us()
    first.close()
    clock.reboot(-180 * DAY)
    assert opened("second boot").time.now_us() >= before
