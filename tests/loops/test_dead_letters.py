"""Messages that are given up."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from testkit.waiting import eventually
from tests.contract.shelf import Shelf
from tests.loops.helpers import in_background
from tests.loops.letters import AT_ONCE, UNKEPT, Order, boom, run, the_letter
from weakincentives import connect
from weakincentives.adapters import CallableAdapter, RateLimitError
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.prompt import ValidationError
from weakincentives.runtime import (
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    InvalidParameterError,
    MailboxConnectionError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    PayloadTooLargeError,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.events import MessageDeadLettered
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.seam.driver import run as run_coroutine
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.worker import settle
from weakincentives.runtime.worker.attempt import Attempt
from weakincentives.runtime.worker.decide import Fail


@pytest.fixture
def box(shelf):
    return shelf("orders", body_type=Order)


# --- when -----------------------------------------------------------------------------------


def test_a_failing_message_is_retried_and_then_given_up(box, letters):
    box.send(Order("tea"))
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=3), config=AT_ONCE)
    for attempt in (1, 2):
        run(worker)
        assert box.stats().pending == 1, attempt
        assert letters.stats().total == 0
    run(worker)
    assert box.stats().total == 0
    assert letters.stats().total == 1


def test_the_letter_has_the_evidence(box, letters):
    before = datetime.now(UTC)
    id = box.send(Order("tea", 2), attributes={"trace_id": "t-1", "tenant": "x"})
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    letter = the_letter(letters)
    assert letter.message_id == id
    assert letter.body == Order("tea", 2)
    assert letter.source_mailbox == "orders"
    assert letter.delivery_count == 1
    assert letter.last_error.startswith("cannot do Order(item='tea', count=2)")
    assert letter.last_error_type == "builtins.ValueError"
    assert before <= letter.first_received_at <= letter.dead_lettered_at <= datetime.now(UTC)
    assert letter.trace_id == "t-1"
    assert letter.attributes == {"trace_id": "t-1", "tenant": "x"}
    assert "in boom" in letter.traceback
    assert ":" in letter.worker
    assert letter.raw_payload is None
    assert "hunter2" not in letter.last_error + letter.traceback.splitlines()[-1]


def test_first_received_at_is_the_first_delivery():
    box, letters = FakeMailbox("jobs"), InMemoryMailbox("dead")
    box.send("a")
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=2), config=AT_ONCE)
    box.advance(100)
    first = datetime.fromtimestamp(box.clock.time(), UTC)
    run(worker)
    box.advance(1000)
    run(worker)
    assert the_letter(letters).first_received_at == first


def test_included_errors_are_given_up_at_once_and_excluded_ones_are_not(box, letters):
    class Picky(ValidationError):
        pass

    policy = DLQPolicy(
        letters,
        max_delivery_count=2,
        include_errors=frozenset({ValidationError}),
        exclude_errors=frozenset({RateLimitError}),
        absolute_max_delivery_count=4,
    )
    errors = {"picky": Picky(), "busy": RateLimitError()}

    def handler(order):
        raise errors[order.item]

    worker = Worker(box, handler, dlq=policy, config=AT_ONCE)
    box.send(Order("picky"))
    run(worker)
    assert letters.purge() == 1
    box.send(Order("busy"))
    run(worker, 3)
    assert (box.stats().pending, letters.stats().total) == (1, 0)
    run(worker)
    assert (box.stats().total, the_letter(letters).delivery_count) == (0, 4)


def test_a_policy_that_fails_does_not_lose_the_message(box, letters):
    class Broken(DLQPolicy):
        def should_dead_letter(self, message, error):
            raise RuntimeError

    box.send(Order("tea"))
    run(Worker(box, boom, dlq=Broken(letters), config=AT_ONCE))
    assert box.stats().pending == 1


def test_a_message_whose_workers_die_is_given_up_unread():
    box, letters = FakeMailbox("jobs"), InMemoryMailbox("dead")
    box.send("poison")
    for _ in range(3):  # three workers received it, and nothing was heard of them
        box.receive(visibility_timeout=10)
        box.advance(11)
    ran = []
    dlq = DLQPolicy(letters, max_delivery_count=3)
    worker = Worker(box, ran.append, dlq=dlq)
    run(worker)
    assert ran == []
    letter = the_letter(letters)
    assert letter.body == "poison"
    assert letter.last_error_type.endswith("RepeatedCrashError")
    assert letter.delivery_count == 4


def test_giving_back_is_no_crash():
    box, letters = FakeMailbox("jobs"), InMemoryMailbox("dead")
    box.send("a")
    for _ in range(5):
        box.receive()[0].nack()
    ran = []
    run(Worker(box, ran.append, dlq=DLQPolicy(letters, max_delivery_count=3)))
    assert ran == ["a"]
    assert letters.stats().total == 0


def test_system_exit_is_evidence_too(box, letters):
    box.send(Order("tea"))
    worker = Worker(box, lambda o: sys.exit(3), dlq=DLQPolicy(letters, max_delivery_count=1))
    with pytest.raises(SystemExit):
        worker.run()
    assert the_letter(letters).last_error_type == "builtins.SystemExit"
    assert box.stats().total == 0


# --- bodies that cannot be read -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "bytes"])
def test_an_unreadable_body_is_given_up_at_its_first_delivery_with_its_bytes(kind):
    shelf = Shelf()
    if kind == "bytes":
        sender, box = shelf.mailbox("orders"), shelf.mailbox("orders", body_type=Order)
    else:
        sender = InMemoryMailbox("orders", serialize=True)
        box = InMemoryMailbox("orders", body_type=Order, serialize=True).on_queue_of(sender)
    letters = shelf.mailbox("dead")
    request_id = uuid4()
    sender.send({"item": 7, "request_id": str(request_id)})
    ran = []
    run(Worker(box, ran.append, dlq=DLQPolicy(letters)))
    assert ran == []
    letter = the_letter(letters)
    assert letter.body is None
    assert b'"item":7' in letter.raw_payload
    assert letter.request_id == request_id
    assert letter.delivery_count == 1
    assert box.stats().total == 0


def test_what_is_no_envelope_is_given_up_too_and_can_be_replayed():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    box.store.put_now((Outgoing("x", b"\x00 not json"),))
    run(Worker(box, print, dlq=DLQPolicy(letters)))
    assert the_letter(letters).raw_payload == b"\x00 not json"
    assert replay_dead_letters(letters, box) == 1
    assert box.peek()[0].payload == b"\x00 not json"


def test_without_a_dlq_an_unreadable_body_is_retried():
    box = InMemoryMailbox("orders", body_type=Order, serialize=True)
    replies = InMemoryMailbox("replies", serialize=True)
    box.send(Order(7), reply_to=replies)
    run(Worker(box, print, error_reply=lambda failure: failure.text, config=AT_ONCE))
    assert box.stats().pending == 1
    assert replies.stats().total == 0


# --- telling the sender ---------------------------------------------------------------------


def test_the_sender_is_told_at_the_end_and_not_before(shelf, box, letters):
    replies = shelf("replies")
    box.send(Order("tea"), reply_to=replies)
    dlq = DLQPolicy(letters, max_delivery_count=2)
    worker = Worker(box, boom, dlq=dlq, error_reply=lambda f: f.text, config=AT_ONCE)
    run(worker)
    assert replies.stats().total == 0
    run(worker)
    (told,) = replies.receive()
    assert told.body.startswith("Dead-lettered after 2 attempts: ValueError (ref ")
    assert "hunter2" not in told.body
    assert the_letter(letters).reply_to == "replies"


def test_a_waiting_caller_is_told(box, letters):
    reply = box.send_expecting_reply(Order("tea"))
    dlq = DLQPolicy(letters, max_delivery_count=1)
    run(Worker(box, boom, dlq=dlq, error_reply=lambda f: f.text))
    assert reply.wait(timeout=120).startswith("Dead-lettered after 1 attempt: ValueError")
    assert box.stats().total == 0


def test_a_waiting_caller_that_nobody_may_tell_does_not_hold_the_message(box, letters):
    box.send_expecting_reply(Order("tea"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert box.stats().total == 0
    assert letters.stats().total == 1


def test_a_sender_who_cannot_be_told_does_not_make_two_letters(box, letters):
    full = InMemoryMailbox("full", max_size=1)
    full.send("in the way")
    box = InMemoryMailbox("jobs")
    box.send("a", reply_to=full)
    dlq = DLQPolicy(letters, max_delivery_count=1)
    run(Worker(box, boom, dlq=dlq, error_reply=lambda f: f.text))
    assert box.stats().total == 0
    assert letters.stats().total == 1


UNTELLABLE = {
    "it raises": lambda failure: 1 / 0,
    "it exits": lambda failure: sys.exit(3),
    "it cannot be encoded": lambda failure: object(),
    "it is too large": lambda failure: "x" * 3_000_000,
}


@pytest.mark.parametrize("ask", ["channel", "reply_to"])
@pytest.mark.parametrize("how", UNTELLABLE)
def test_an_error_reply_that_fails_does_not_stop_the_thread(tmp_path, ask, how):
    """The evidence is safe: the message goes, whoever waits, and the next one is served."""
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
        if ask == "channel":
            box.send_expecting_reply("bad", reply_timeout=3600)
        else:
            box.send("bad", reply_to=backend.mailbox("replies"))
        box.send("good")
        done = []

        def handler(body):
            if body == "bad":
                raise ValueError("no")
            done.append(body)

        dlq = DLQPolicy(letters, max_delivery_count=1)
        with in_background(Worker(box, handler, dlq=dlq, error_reply=UNTELLABLE[how])):
            eventually(lambda: done == ["good"])
            eventually(lambda: box.stats().total == 0)
        assert letters.stats().total == 1


@pytest.mark.parametrize("batch", [1, 2])
def test_an_answer_that_cannot_be_told_either_way_does_not_stop_the_thread(tmp_path, batch):
    """The result cannot be encoded, which fails the job, and its error reply cannot be either."""
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
        for _ in range(2):
            box.send_expecting_reply("a", reply_timeout=3600)
        worker = Worker(
            box,
            lambda body: object(),
            dlq=DLQPolicy(letters, max_delivery_count=1),
            error_reply=lambda failure: object(),
            config=WorkerConfig(batch=batch),
        )
        with in_background(worker):
            eventually(lambda: letters.stats().total == 2)
            eventually(lambda: box.stats().total == 0)


def test_main_loop_tells_its_sender(letters):
    box = InMemoryMailbox("requests")
    request = MainLoopRequest(request="a")
    reply = box.send_expecting_reply(request)
    MainLoop(
        adapter=CallableAdapter(boom),
        requests=box,
        dlq=DLQPolicy(letters, max_delivery_count=1),
        config=MainLoopConfig(error_detail="text"),
    ).run(max_iterations=1)
    result = reply.wait(timeout=60)
    assert isinstance(result, MainLoopResult)
    assert result.request_id == request.request_id
    assert "cannot do" in result.error
    letter = the_letter(letters)
    assert letter.request_id == request.request_id


# --- crashes between the steps --------------------------------------------------------------


def test_dead_lettering_that_is_repeated_is_one_letter(box, letters):
    """Killed between the letter and the acknowledgement."""
    box.send(Order("tea"))
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=UNKEPT)
    (message,) = box.receive(visibility_timeout=30)
    for _ in range(2):
        assert has_failed(worker, message)
    assert letters.stats().total == 1


def test_a_worker_that_died_before_its_acknowledgement_leaves_one_letter(letters):
    box = FakeMailbox("jobs")
    box.send(Order("tea"))
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=UNKEPT)
    for delivery in (1, 2):  # the first worker dies, the message comes back to the second
        (message,) = box.receive(visibility_timeout=30)
        assert message.delivery_count == delivery
        assert has_failed(worker, message)
        box.advance(31)
    assert letters.stats().total == 1


def test_an_id_that_is_used_again_gets_a_letter_of_its_own(letters):
    box = FakeMailbox("jobs")
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=UNKEPT)
    for _ in range(2):
        box.send(Order("tea"), message_id="order-7")
        (message,) = box.receive()
        assert has_failed(worker, message)
        message.acknowledge()
        box.advance(301)
    assert letters.stats().total == 2


def has_failed(worker, message):
    """Settle an attempt at a message as failed; return whether it is to be acknowledged."""
    attempt = Attempt(message, worker.lease_extender.hold(message))
    run_coroutine(lambda: worker._executor.carry_out(attempt, Fail(ValueError("no"))))
    return attempt.has_ended


def test_dead_letters_that_cannot_be_sent_leave_the_message_where_it_is(box, monkeypatch):
    monkeypatch.setattr(settle, "SETTLE_RETRY_SECONDS", 0.2)  # a minute, usually
    letters = FakeMailbox("dead")
    full = InMemoryMailbox("full", max_size=1)
    full.send("in the way")
    box.send(Order("tea"))
    run(Worker(box, boom, dlq=DLQPolicy(full, max_delivery_count=1), config=AT_ONCE))
    assert box.stats().pending == 1
    letters.set_connection_error(MailboxConnectionError("down"))
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=AT_ONCE)
    with in_background(worker):
        eventually(lambda: box.stats().in_flight == 1)
    assert box.stats().pending == 1


class NarrowStore(InMemoryStore):
    """A service that takes no more than 1 MiB, whatever it is."""

    def put_now(self, messages):
        if any(len(message.payload) > self.limits.max_bytes for message in messages):
            raise PayloadTooLargeError
        super().put_now(messages)


def test_a_letter_too_large_for_its_stack_goes_without():
    shelf = Shelf(NarrowStore)
    box, letters = shelf.mailbox("jobs"), shelf.mailbox("dead")
    box.send("x" * (box.limits.max_bytes - 4000))

    def handler(body):
        raise ValueError("y" * 5000)

    run(Worker(box, handler, dlq=DLQPolicy(letters, max_delivery_count=1)))
    letter = the_letter(letters)
    assert letter.traceback is None
    assert len(letter.body) == box.limits.max_bytes - 4000


# --- policies -------------------------------------------------------------------------------


@pytest.mark.parametrize("max_delivery_count", [0, -1, 101, 1.5, None, True, "5"])
def test_nonsense_is_refused(letters, max_delivery_count):
    with pytest.raises(InvalidParameterError, match="max_delivery_count"):
        DLQPolicy(letters, max_delivery_count=max_delivery_count)


@pytest.mark.parametrize("name", ["include_errors", "exclude_errors"])
@pytest.mark.parametrize("errors", [ValueError, frozenset({"ValueError"}), [ValueError()], 1])
def test_errors_are_told_by_their_types(letters, name, errors):
    with pytest.raises(InvalidParameterError, match=name):
        DLQPolicy(letters, **{name: errors})


def test_errors_may_come_in_any_set(letters):
    for errors in ({ValueError}, [ValueError], (ValueError,), frozenset()):
        assert DLQPolicy(letters, include_errors=errors).include_errors == errors


def test_policies_can_be_subclassed_as_dataclasses(letters):
    @dataclass(slots=True, frozen=True)
    class Strict(DLQPolicy):
        patience: float = 0.5

        def should_dead_letter(self, message, error):
            return self.patience < 0.4

    assert Strict(mailbox=letters, patience=0.3).should_dead_letter(None, ValueError())
    assert not Strict(mailbox=letters, max_delivery_count=10).should_dead_letter(None, ValueError())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 695 syntax needs Python 3.12")
def test_policies_can_be_subclassed_with_pep_695(letters):
    space = {"DLQPolicy": DLQPolicy, "dataclass": dataclass}
    exec(
        "@dataclass(slots=True, frozen=True)\n"
        "class Mine[T, R](DLQPolicy[T, R]):\n"
        "    error_budget: float = 0.5\n",
        space,
    )
    assert space["Mine"](mailbox=letters, error_budget=0.1).error_budget == 0.1


def test_a_policy_may_be_given_its_types(letters):
    assert DLQPolicy[Order, None](mailbox=letters).max_delivery_count == 5


def test_events(box, letters):
    events = InProcessDispatcher()
    told = []
    events.subscribe(MessageDeadLettered, told.append)
    id = box.send(Order("tea"))
    config = WorkerConfig(dispatcher=events)
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=config))
    (event,) = told
    assert (event.message_id, event.error_type) == (id, "builtins.ValueError")
    assert letters.peek()[0].id == event.dead_letter_id


def test_the_log_line(box, letters, caplog):
    box.send(Order("tea"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    (record,) = [r for r in caplog.records if r.message.startswith("Message dead-lettered")]
    assert record.error_type == "builtins.ValueError"
    assert record.source_mailbox == "orders"
