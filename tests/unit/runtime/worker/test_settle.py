"""Outcomes are carried out by the same code in a thread and in an event loop."""

import asyncio

import pytest

from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime import Backoff, DLQPolicy, Failure, Heartbeat, LeaseExtender
from weakincentives.runtime.events import JobAbandoned
from weakincentives.runtime.mailbox import InMemoryMailbox, MailboxConnectionError
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.waiting import StopSignal
from weakincentives.runtime.worker import decide
from weakincentives.runtime.worker.attempt import Attempt, State
from weakincentives.runtime.worker.config import Settings, WorkerConfig
from weakincentives.runtime.worker.inbox import Inbox
from weakincentives.runtime.worker.settle import OutcomeExecutor

ERROR = ValueError("no")
CONFIG = WorkerConfig(backoff=Backoff(base=0, cap=0))


class AwaitedInbox(Inbox):
    """An inbox of which each step suspends, and fails a few times first."""

    faults = 0

    async def _step(self):
        await asyncio.sleep(0)
        if self.faults:
            self.faults -= 1
            raise MailboxConnectionError("down")

    async def reply(self, message, value, id):
        await self._step()
        await message.reply_async(value, message_id=id)
        return None if message.expects_reply() else message.reply_to

    async def send(self, mailbox, body, id):
        await self._step()
        await mailbox.send_async(body, message_id=id)

    async def nack(self, message, delay):
        await self._step()
        await message.nack_async(visibility_timeout=delay)

    async def acknowledge(self, messages):
        await self._step()
        await super().acknowledge(messages)


class Bench:
    """A mailbox with one message in hand, and what settles it."""

    def __init__(self, inbox=Inbox, *, faults=0, expects=False, **settings):
        self.box = InMemoryMailbox("jobs")
        self.reply = self.box.send_expecting_reply("a") if expects else None
        if not expects:
            self.box.send("a")
        (message,) = self.box.receive()
        self.attempt = Attempt(message, LeaseExtender().hold(message))
        self.attempt.route = "channel" if expects else None
        self.inbox = inbox(self.box)
        self.inbox.faults = faults
        self.pauses = []
        chosen = {"error_reply": None, "responses": None, "dlq": None, "dispatcher": None}
        self.executor = OutcomeExecutor(
            self.inbox,
            Settings(CONFIG, **{**chosen, **settings}),
            StopSignal(),
            Heartbeat(),
            self.pause,
        )

    async def pause(self, seconds):
        self.pauses.append(seconds)


def in_thread(bench, outcome):
    run(lambda: bench.executor.carry_out(bench.attempt, outcome))
    run(lambda: bench.executor.answer(bench.attempt))
    if bench.attempt.state is State.FINISHED:
        run(lambda: bench.executor.acknowledge([bench.attempt]))


def in_event_loop(bench, outcome):
    async def main():
        await bench.executor.carry_out(bench.attempt, outcome)
        await bench.executor.answer(bench.attempt)
        if bench.attempt.state is State.FINISHED:
            await bench.executor.acknowledge([bench.attempt])

    asyncio.run(main())


DRIVERS = [(Inbox, in_thread), (AwaitedInbox, in_event_loop)]


@pytest.fixture(params=DRIVERS, ids=["thread", "event loop"])
def driver(request):
    return request.param


def test_done(driver):
    inbox, carry_out = driver
    bench = Bench(inbox)
    carry_out(bench, decide.ACKNOWLEDGE)
    assert bench.box.stats().total == 0


def test_replied(driver):
    inbox, carry_out = driver
    bench = Bench(inbox, expects=True)
    carry_out(bench, decide.Reply(7))
    assert bench.reply.wait(timeout=0) == 7
    assert bench.box.stats().total == 0


def test_failed_and_retried(driver):
    inbox, carry_out = driver
    bench = Bench(inbox)
    carry_out(bench, decide.Fail(ERROR))
    assert bench.attempt.state is State.GIVEN_BACK
    assert [(one.delivery_count, one.nack_count) for one in bench.box.peek()] == [(1, 1)]


def test_given_back(driver):
    inbox, carry_out = driver
    bench = Bench(inbox)
    carry_out(bench, decide.GiveBack())
    assert bench.attempt.state is State.GIVEN_BACK
    assert [(one.delivery_count, one.nack_count) for one in bench.box.peek()] == [(0, 0)]


def test_dead_lettered_and_told(driver):
    inbox, carry_out = driver
    letters = InMemoryMailbox("letters")
    policy = DLQPolicy(letters, max_delivery_count=1)
    bench = Bench(inbox, expects=True, dlq=policy, error_reply=tell)
    carry_out(bench, decide.Fail(ERROR))
    assert "Dead-lettered after 1 attempt" in bench.reply.wait(timeout=0)
    assert letters.stats().total == 1
    assert bench.box.stats().total == 0


def tell(failure: Failure) -> str:
    return failure.text


def test_dead_lettered_with_a_caller_who_cannot_be_told(driver):
    inbox, carry_out = driver
    letters = InMemoryMailbox("letters")
    bench = Bench(inbox, expects=True, dlq=DLQPolicy(letters, max_delivery_count=1))
    carry_out(bench, decide.Fail(ERROR))
    assert bench.attempt.state is State.ACKNOWLEDGED
    assert bench.box.stats().total == 0


@pytest.mark.parametrize(
    ("expects", "outcome", "pending"),
    [(True, decide.Reply(7), 0), (False, decide.Retry(0.0), 1), (False, decide.ACKNOWLEDGE, 0)],
)
def test_a_step_that_does_not_reach_its_mailbox_is_repeated(expects, outcome, pending):
    bench = Bench(AwaitedInbox, faults=3, expects=expects)
    in_event_loop(bench, outcome)
    assert len(bench.pauses) == 3
    assert bench.attempt.in_doubt
    assert bench.box.stats().total == bench.box.stats().pending == pending


@pytest.mark.parametrize("inbox", [inbox for inbox, _ in DRIVERS])
def test_a_lost_lease(inbox):
    bench = Bench(inbox, expects=True)
    bench.attempt.lease.abandon()
    in_event_loop(bench, decide.Reply(7))
    assert bench.attempt.state is State.ABANDONED
    assert not bench.reply.is_ready()
    assert bench.box.stats().in_flight == 1


def test_a_step_that_suspends_is_refused_in_a_thread():
    bench = Bench(AwaitedInbox)
    with pytest.raises(RuntimeError, match="suspended"):
        in_thread(bench, decide.Retry(0.0))


class CutOff(Inbox):
    """An inbox whose first step is carried out and then cut off."""

    cut_off = True

    async def _cut_off(self):
        if self.cut_off:
            self.cut_off = False
            raise MailboxConnectionError("after it was done")

    async def acknowledge(self, messages):
        handles = [message.receipt_handle for message in messages]
        if self.cut_off:
            self.store.acknowledge_now(handles)
        await self._cut_off()
        await super().acknowledge(messages)

    async def undo(self, messages, delay):
        if self.cut_off:
            await self.store.release([message.receipt_handle for message in messages], 0.0)
        await self._cut_off()
        await super().undo(messages, delay)


@pytest.mark.parametrize("step", ["acknowledge", "give_back"])
def test_a_batch_that_was_cut_off_is_in_doubt_as_a_whole(step):
    """The repeat is refused, and none of them was lost."""
    events, told = InProcessDispatcher(), []
    events.subscribe(JobAbandoned, told.append)
    bench = Bench(CutOff, dispatcher=events)
    bench.box.send_batch(["b", "c"])
    more = [Attempt(one, LeaseExtender().hold(one)) for one in bench.box.receive(max_messages=2)]
    attempts = [bench.attempt, *more]
    run(lambda: getattr(bench.executor, step)(attempts))
    assert all(attempt.in_doubt for attempt in attempts)
    assert told == []
