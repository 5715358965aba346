"""Tests with many threads and tasks, and with tasks that are cancelled halfway."""

import asyncio
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

from weakincentives.runtime.mailbox.errors import MailboxFullError, ReceiptHandleExpiredError

from .driver import DEADLINE, background
from .harness import LONG, Harness, async_only

__all__ = ["Concurrency"]

THREADS, EACH = 4, 50


class Concurrency(Harness):
    """No message is lost or delivered twice when many threads and tasks run at once."""

    def test_eight_threads(self) -> None:
        box = self.mailbox()
        expected = {(sender, n) for sender in range(THREADS) for n in range(EACH)}
        done: list[tuple[int, int]] = []
        finished = threading.Event()
        deadline = time.monotonic() + DEADLINE

        def send(sender: int) -> None:
            for n in range(0, EACH, 5):
                box.send([sender, n])
                box.send_batch([[sender, n + more] for more in range(1, 5)])

        def consume() -> None:
            while not finished.is_set() and time.monotonic() < deadline:
                for message in box.receive(
                    max_messages=3, visibility_timeout=LONG, wait_time_seconds=1
                ):
                    assert message.acknowledge() is True
                    done.append(tuple(message.body))
                    if len(done) >= len(expected):
                        finished.set()

        working = [background(send, sender) for sender in range(THREADS)]
        working += [background(consume) for _ in range(THREADS)]
        for each in working:
            each.result(DEADLINE * 2)
        twice = [body for body, count in Counter(done).items() if count > 1]
        assert (expected - set(done), twice) == (set(), [])
        assert box.receive() == []

    def test_one_message_goes_to_one_of_many_consumers(self) -> None:
        box = self.mailbox()
        box.send(1)
        ready = threading.Barrier(6)

        def look() -> list[Any]:
            ready.wait(DEADLINE)
            return box.receive(visibility_timeout=LONG)  # type: ignore[no-any-return]

        looks = [background(look) for _ in range(6)]
        assert sum(len(each.result(DEADLINE)) for each in looks) <= 1

    def test_one_of_many_settlements_counts(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        box.send(1)
        handle = self.take_one(box).receipt_handle
        ready = threading.Barrier(6)

        def settle(n: int) -> bool:
            ready.wait(DEADLINE)
            store, call = box.store, self.driver.call
            nack, acknowledge = partial(store.release, [handle], 0.0), store.acknowledge
            (done,) = call(nack) if n % 2 else call(acknowledge, [handle])
            return bool(done)

        answers = [background(settle, n).result for n in range(6)]
        assert sum(answer(DEADLINE) for answer in answers) == 1

    def test_one_of_many_sends_of_an_id_counts(self) -> None:
        box = self.mailbox()
        self.needs(box, "idempotent_send")
        sends = [background(box.send, n, message_id="job") for n in range(8)]
        assert {each.result(DEADLINE) for each in sends} == {"job"}
        self.take_one(box)
        assert box.receive() == []

    def test_no_more_than_max_size_get_in(self) -> None:
        box = self.mailbox(max_size=5)

        def send(n: int) -> bool:
            try:
                box.send(n)
            except MailboxFullError:
                return False
            return True

        sends = [background(send, n) for n in range(12)]
        assert sum(each.result(DEADLINE) for each in sends) == 5
        assert box.approximate_count() == 5

    def test_purging_leaves_nothing_of_what_is_in_flight(self) -> None:
        box = self.mailbox()
        self.needs(box, "exact_counts")

        def work(n: int) -> None:
            for turn in range(20):
                box.send_batch([[n, turn], [n, -turn]])
                for message in box.receive(max_messages=4, visibility_timeout=LONG):
                    assert message.body[0] in range(4)
                    try:
                        message.nack() if turn % 2 else message.acknowledge()
                    except ReceiptHandleExpiredError:
                        pass  # purged meanwhile

        def purge() -> None:
            for _ in range(10):
                box.purge()

        working = [background(work, n) for n in range(4)] + [background(purge)]
        for each in working:
            each.result(DEADLINE)
        left = box.approximate_count()
        assert box.purge() == left
        stats = box.stats()
        assert (stats.pending, stats.in_flight, stats.delayed) == (0, 0, 0)
        assert box.receive() == []

    @async_only
    def test_waiting_does_not_stop_others(self) -> None:
        box = self.mailbox()

        async def crowd() -> None:
            wait = int(min(20, box.limits.max_wait))
            waiting = [
                asyncio.create_task(
                    box.raw.receive_async(visibility_timeout=LONG, wait_time_seconds=wait)
                )
                for _ in range(100)
            ]
            await asyncio.wait(waiting, timeout=0.2)
            async with asyncio.timeout(0.75 * wait):
                await box.raw.send_async("through")
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            box.raw.close()
            async with asyncio.timeout(0.75 * wait):
                results = await asyncio.gather(*waiting)
            assert [message.body for got in results for message in got] == ["through"]
            assert len(done) >= 1

        self.driver.run(crowd())

    @async_only
    def test_a_cancelled_receive_keeps_nothing(self) -> None:
        box = self.mailbox()

        async def cancelled_at(turn: int) -> list[Any]:
            task = asyncio.create_task(
                box.raw.receive_async(visibility_timeout=LONG, wait_time_seconds=20)
            )
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            await box.raw.send_async(turn)
            for _ in range(turn // 4):
                await asyncio.sleep(0)
            for _ in range(1 + turn % 3):
                # A task can be cancelled a second time while it releases what it has leased.
                task.cancel()
                await asyncio.sleep(0)
            try:
                received: list[Any] = await task
            except asyncio.CancelledError:
                return []
            return received

        for turn in range(24):
            received = self.driver.run(cancelled_at(turn))
            self.check_received_or_back(box, received, turn)
        assert box.receive() == []

    @async_only
    def test_receives_that_end_with_their_event_loop_keep_nothing(self) -> None:
        """As `asyncio.run` ends: every task there is gets cancelled, whoever started it."""
        box = self.mailbox()
        got: list[Any] = []

        async def receive() -> None:
            got.extend(await box.raw.receive_async(visibility_timeout=LONG, wait_time_seconds=20))

        async def cancelled_at(turn: int) -> None:
            receiving = [asyncio.create_task(receive()) for _ in range(2)]
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            await box.raw.send_async(turn)
            for _ in range(turn // 4):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)

        for turn in range(24):
            got.clear()
            self.driver.run(cancelled_at(turn))
            self.check_received_or_back(box, got, turn)
        assert box.receive() == []

    def check_received_or_back(self, box: Any, received: list[Any], body: int) -> None:
        """Check that a cancelled receive has returned the message, or has given it back."""
        if received:
            assert self.driver.run(received[0].acknowledge_async()) is True
            return
        message = self.take_one(box)
        assert message.body == body
        if box.capabilities.uncounted_releases:
            assert message.delivery_count == 1
        assert message.acknowledge() is True

    @async_only
    def test_a_cancelled_waiter_passes_its_wake_up_on(self) -> None:
        box = self.mailbox()

        async def one_of_two_gives_up(turn: int) -> list[Any]:
            first, second = (
                asyncio.create_task(
                    box.raw.receive_async(visibility_timeout=LONG, wait_time_seconds=20)
                )
                for _ in range(2)
            )
            await asyncio.wait([first, second], timeout=0.02)
            await box.raw.send_async(turn)
            for _ in range(turn):
                await asyncio.sleep(0)
            first.cancel()
            async with asyncio.timeout(10):
                await asyncio.wait([first])
                if first.cancelled():
                    return list(await second)
                second.cancel()
                await asyncio.wait([second])
                return list(first.result())

        for turn in range(6):
            (message,) = self.driver.run(one_of_two_gives_up(turn))
            assert message.body == turn
            assert self.driver.run(message.acknowledge_async()) is True

    @async_only
    def test_a_cancelled_wait_harms_nobody(self) -> None:
        box = self.mailbox()

        async def cancelled() -> None:
            task = asyncio.create_task(box.raw.receive_async(wait_time_seconds=20))
            await asyncio.wait([task], timeout=0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.driver.run(cancelled())
        waiting = background(box.receive, wait_time_seconds=10)
        box.send("next")
        (message,) = waiting.result(DEADLINE)
        assert message.delivery_count == 1
