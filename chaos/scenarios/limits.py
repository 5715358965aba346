"""What a store promises beside leases: room, retention, remembered ids, times, and waking."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from chaos.stage import Result, Stage, scenario
from weakincentives.contrib.mailbox.sqlite import SQLiteStore
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.errors import MailboxFullError
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

Make = Callable[..., tuple[Any, FakeClock]]
"""Makes an empty store with these options, and the clock that it goes by."""

MINUTE = 60.0


@scenario("memory", "sqlite", full=1, short=1)
def beside_leases(stage: Stage):
    """room, batches, retention, remembered ids, delays, times and waking, on a moved clock"""
    numbers = iter(range(100))

    def make(**options: Any) -> tuple[Any, FakeClock]:
        clock = FakeClock()
        if stage.backend == "memory":
            return InMemoryStore("jobs", clock=clock, **options), clock
        path = stage.directory / f"{next(numbers)}.db"
        database = open_database(path, "normal", clock=clock, boot_id="one boot")
        stage.resources.callback(database.close)
        return SQLiteStore(database, "jobs", **options), clock

    return Result(len(PROMISES), broken_promises(make))


def broken_promises(make: Make) -> list[str]:
    """Return which of the promises a store breaks."""
    wrong = []
    for promise in PROMISES:
        try:
            wrong += promise(make)
        except Exception as error:
            wrong.append(f"{promise.__name__}: {type(error).__name__}: {error}")
    return wrong


def room(make: Make) -> Iterator[str]:
    store, _ = make(max_size=3)
    driven(store.put([Outgoing("a", b"1"), Outgoing("b", b"2")]))
    driven(store.lease(1, MINUTE))
    if _accepted(store, "c", "d"):
        yield "four messages fit where three are allowed"
    if sum(driven(store.stats())[:3]) != 2:
        yield "half of a batch that does not fit was sent"
    driven(store.put([Outgoing("c", b"3")]))
    if _accepted(store, "d"):
        yield "a fourth message fits where three are allowed"


def retention(make: Make) -> Iterator[str]:
    store, clock = make(retention=MINUTE)
    driven(store.put([Outgoing("old", b"1")]))
    clock.advance(2 * MINUTE)
    driven(store.put([Outgoing("new", b"2")]))
    if [one.id for one in driven(store.lease(5, MINUTE)).messages] != ["new"]:
        yield "what is older than the retention is delivered"


def remembered_ids(make: Make) -> Iterator[str]:
    store, clock = make()
    for wait, expected in ((0, 1), (MINUTE, 0), (6 * MINUTE, 1)):
        clock.advance(wait)
        driven(store.put([Outgoing("mine", b"1", given=True)]))
        got = driven(store.lease(5, MINUTE)).messages
        driven(store.acknowledge([one.handle for one in got]))
        if len(got) != expected:
            yield f"an id sent again after {wait:g} s makes {len(got)} messages, not {expected}"


def delays(make: Make) -> Iterator[str]:
    store, clock = make()
    driven(store.put([Outgoing("later", b"1", delay=MINUTE)]))
    if driven(store.lease(1, MINUTE)).messages:
        yield "a delayed message is visible at once"
    clock.advance(MINUTE + 1)
    if not driven(store.lease(1, MINUTE)).messages:
        yield "a delayed message is not visible after its delay"


def purged_for_good(make: Make) -> Iterator[str]:
    store, clock = make()
    driven(store.put([Outgoing("later", b"1", delay=MINUTE), Outgoing("now", b"2")]))
    driven(store.lease(1, MINUTE))
    driven(store.purge())
    clock.advance(2 * MINUTE)
    if driven(store.lease(5, MINUTE)).messages:
        yield "a message comes back after a purge"


def first_receive(make: Make) -> Iterator[str]:
    store, clock = make()
    driven(store.put([Outgoing("m", b"1")]))
    (first,) = driven(store.lease(1, MINUTE)).messages
    clock.advance(2 * MINUTE)
    (second,) = driven(store.lease(1, MINUTE)).messages
    if abs(second.first_received_at - first.first_received_at) > 1:
        yield "the time of the first receive changes"


def order_after_a_nack(make: Make) -> Iterator[str]:
    store, _ = make()
    driven(store.put([Outgoing("a", b"1"), Outgoing("b", b"2"), Outgoing("c", b"3")]))
    (first,) = driven(store.lease(1, MINUTE)).messages
    driven(store.release([first.handle], 0.0))
    if [one.id for one in driven(store.lease(3, MINUTE)).messages] != ["b", "c", "a"]:
        yield "a nacked message does not go to the back"


def waking(make: Make) -> Iterator[str]:
    store, _ = make()
    listener = store.listen()
    asleep, got = threading.Event(), []

    def wait() -> None:
        asleep.set()
        deadline = time.monotonic() + 5
        while not got and time.monotonic() < deadline:
            got.extend(driven(listener.lease(1, MINUTE, 5.0)).messages)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    asleep.wait(5)
    time.sleep(0.05)  # it is asleep for certain, or the send is found without waking
    began = time.monotonic()
    driven(store.put([Outgoing("m", b"1")]))
    thread.join(120)
    listener.close()
    if not got or time.monotonic() - began > 3:
        yield "nobody was woken by a message"


PROMISES: tuple[Callable[[Make], Iterator[str]], ...] = (
    room,
    retention,
    remembered_ids,
    delays,
    purged_for_good,
    first_receive,
    order_after_a_nack,
    waking,
)


def _accepted(store: Any, *ids: str) -> bool:
    try:
        driven(store.put([Outgoing(id, b"x") for id in ids]))
    except MailboxFullError:
        return False
    return True
