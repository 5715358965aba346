"""Messages that are given up, looked after, and sent again."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from tests.contract.shelf import Shelf
from tests.loops.helpers import in_background
from tests.support.waiting import eventually
from weakincentives.adapters import CallableAdapter, RateLimitError
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.prompt import ValidationError
from weakincentives.runtime import (
    Backoff,
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    InvalidParameterError,
    LeaseExtenderConfig,
    MailboxConnectionError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    RegistryResolver,
    UnsupportedOperationError,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.events import DeadLetterReplayed, MessageDeadLettered
from weakincentives.runtime.mailbox.limits import Capabilities
from weakincentives.runtime.mailbox.store import Outgoing

AT_ONCE = WorkerConfig(backoff=Backoff(base=0, cap=0))
UNKEPT = WorkerConfig(
    backoff=Backoff(base=0, cap=0), lease_extender=LeaseExtenderConfig(enabled=False)
)


@dataclass(frozen=True)
class Order:
    item: str
    count: int = 1


def boom(body):
    raise ValueError(f"cannot do {body} with password=hunter2")


def run(worker, n=1):
    worker.run(max_iterations=n, wait_time_seconds=0)


@pytest.fixture(params=["objects", "json", "bytes"])
def shelf(request):
    """Opens mailboxes that keep objects, objects through JSON, or bytes."""
    if request.param == "bytes":
        return Shelf().mailbox
    return lambda name, **options: InMemoryMailbox(
        name, serialize=request.param == "json", **options
    )


@pytest.fixture
def box(shelf):
    return shelf("orders", body_type=Order)


@pytest.fixture
def letters(shelf):
    return shelf("orders-dlq")


def the_letter(letters):
    (message,) = letters.receive(max_messages=10)
    message.nack()
    assert isinstance(message.body, DeadLetter)
    return message.body


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
    box = (
        shelf.mailbox("orders", body_type=Order)
        if kind == "bytes"
        else InMemoryMailbox("orders", body_type=Order, serialize=True)
    )
    letters = shelf.mailbox("dead")
    request_id = uuid4()
    box.send({"item": 7, "request_id": str(request_id)})
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
    box.store.put((Outgoing("x", b"\x00 not json"),))
    run(Worker(box, print, dlq=DLQPolicy(letters)))
    assert the_letter(letters).raw_payload == b"\x00 not json"
    assert replay_dead_letters(letters, box) == 1
    assert box.peek()[0].payload == b"\x00 not json"


def test_without_a_dlq_an_unreadable_body_is_retried():
    box = InMemoryMailbox("orders", body_type=Order, serialize=True)
    replies = InMemoryMailbox("replies", serialize=True)
    box.send({"item": 7}, reply_to=replies)
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
    assert reply.wait(timeout=5).startswith("Dead-lettered after 1 attempts: ValueError")
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
    result = reply.wait(timeout=5)
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
        job = worker_job(worker, message)
        assert worker._settler.fail(job, ValueError("no"))
    assert letters.stats().total == 1


def test_a_worker_that_died_before_its_acknowledgement_leaves_one_letter(letters):
    box = FakeMailbox("jobs")
    box.send(Order("tea"))
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=UNKEPT)
    for delivery in (1, 2):  # the first worker dies, the message comes back to the second
        (message,) = box.receive(visibility_timeout=30)
        assert message.delivery_count == delivery
        assert worker._settler.fail(worker_job(worker, message), ValueError("no"))
        box.advance(31)
    assert letters.stats().total == 1


def test_an_id_that_is_used_again_gets_a_letter_of_its_own(letters):
    box = FakeMailbox("jobs")
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1), config=UNKEPT)
    for _ in range(2):
        box.send(Order("tea"), message_id="order-7")
        (message,) = box.receive()
        assert worker._settler.fail(worker_job(worker, message), ValueError("no"))
        message.acknowledge()
        box.advance(301)
    assert letters.stats().total == 2


def worker_job(worker, message):
    from weakincentives.runtime.source import Job

    return Job(message, worker.lease_extender.hold(message))


def test_dead_letters_that_cannot_be_sent_leave_the_message_where_it_is(box):
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


def test_a_letter_too_large_for_its_stack_goes_without(letters):
    shelf = Shelf()
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


# --- DLQConsumer ----------------------------------------------------------------------------


def fill(box, letters, *items, **policy):
    for item in items:
        box.send(Order(item))
    policy = DLQPolicy(letters, max_delivery_count=1, **policy)
    run(Worker(box, boom, dlq=policy), len(items))
    assert letters.stats().pending == len(items)


def test_a_consumer_handles_letters(box, letters):
    fill(box, letters, "tea", "milk")
    seen = []
    consumer = DLQConsumer(mailbox=letters, handler=seen.append)
    with in_background(consumer):
        eventually(lambda: letters.stats().total == 0)
        assert consumer.running
        assert consumer.heartbeat.elapsed() < 60
    assert [letter.message_id for letter in seen]
    assert [letter.body for letter in seen] == [Order("tea"), Order("milk")]


def test_a_consumer_that_fails_keeps_the_letter_for_an_hour(caplog):
    letters = FakeMailbox("dead")
    fill(InMemoryMailbox("orders"), letters, "tea")
    DLQConsumer(mailbox=letters, handler=lambda letter: 1 / 0).run(
        max_iterations=1, wait_time_seconds=0
    )
    assert "DLQ handler failed" in caplog.text
    letters.advance(3599)
    assert letters.stats().delayed == 1
    letters.advance(1)
    assert letters.stats().pending == 1


def test_a_consumer_reads_letters_of_its_type(box, letters):
    letters = Shelf().mailbox("dead")
    fill(InMemoryMailbox("orders"), letters, "tea")
    letters = reopened(letters)
    seen = []
    DLQConsumer[Order](mailbox=letters, handler=seen.append).run(
        max_iterations=1, wait_time_seconds=0
    )
    assert seen[0].body == Order("tea")


def reopened(mailbox):
    """The same queue, opened by somebody who was told nothing."""
    other = Shelf().mailbox(mailbox.name)
    other.store = mailbox.store
    return other


# --- replay ---------------------------------------------------------------------------------


def waiting(box):
    return [peeked.body for peeked in box.peek(100)]


def test_letters_are_sent_again(box, letters):
    fill(box, letters, "tea", "milk")
    assert replay_dead_letters(letters, box) == 2
    assert waiting(box) == [Order("tea"), Order("milk")]
    assert letters.stats().total == 0


def test_replayed_messages_keep_their_attributes_and_get_an_id_of_their_own(box, letters):
    id = box.send(Order("tea"), attributes={"tenant": "x"}, message_id="order-1")
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    replay_dead_letters(letters, box)
    (message,) = box.receive()
    assert message.id != id
    assert message.attributes == {"tenant": "x"}
    assert message.delivery_count == 1


def test_what_does_not_match_stays_where_it_was(box, letters):
    fill(box, letters, "a", "b", "c", "d")
    before = [(p.id, p.delivery_count, p.nack_count) for p in letters.peek()]
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item in "bd")
    assert count == 2
    assert waiting(box) == [Order("b"), Order("d")]
    after = [(p.id, p.delivery_count, p.nack_count) for p in letters.peek()]
    assert after == [before[0], before[2]]


def test_limit_dry_run_and_progress(box, letters):
    fill(box, letters, "a", "b", "c")
    assert replay_dead_letters(letters, box, dry_run=True) == 3
    assert replay_dead_letters(letters, box, dry_run=True, limit=2) == 2
    assert replay_dead_letters(letters, box, limit=0) == 0
    assert letters.stats().pending == 3
    told = []
    progress = lambda count, letter: told.append((count, letter.body.item))  # noqa: E731
    assert replay_dead_letters(letters, box, limit=2, progress=progress) == 2
    assert told == [(1, "a"), (2, "b")]
    assert letters.stats().pending == 1


@pytest.mark.parametrize("limit", [-1, 1.5, True, "2"])
def test_a_limit_of_nonsense_is_refused(box, letters, limit):
    fill(box, letters, "a")
    with pytest.raises(InvalidParameterError, match="limit"):
        replay_dead_letters(letters, box, limit=limit)
    assert letters.stats().pending == 1


def test_letters_are_not_replayed_into_their_own_queue(box, letters):
    fill(box, letters, "a")
    with pytest.raises(InvalidParameterError, match="evidence"):
        replay_dead_letters(letters, letters)
    assert the_letter(letters).body == Order("a")


def test_more_letters_than_a_page(box, letters):
    items = [f"i{n}" for n in range(250)]
    fill(box, letters, *items)
    odd = [item for item in items if int(item[1:]) % 2]
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item in odd)
    assert count == 125
    assert [order.item for order in (m.body for m in box.receive(max_messages=200))] == odd
    assert letters.stats().pending == 125


def test_a_job_that_fails_again_at_once_is_not_replayed_forever(box, letters):
    fill(box, letters, "a", "b")
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1))
    assert replay_dead_letters(letters, box, progress=lambda *_: run(worker)) == 2
    assert letters.stats().pending == 2


@pytest.mark.parametrize("died", ["before the send", "after the send"])
def test_killed_at_any_point_a_letter_is_neither_lost_nor_doubled(box, letters, died, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*args, **kwargs):
        raise Killed

    fill(box, letters, "a", "b")
    with monkeypatch.context() as patch:
        if died == "before the send":
            patch.setattr(box, "send", die)
            patch.setattr(letters.store, "release", lambda *args: [True])
        else:
            patch.setattr(letters.store, "acknowledge", die)
        with pytest.raises(Killed):
            replay_dead_letters(letters, box)
    # its lease runs out
    handles = list(letters.store._leased)
    letters.store.release(handles, 0.0)
    assert letters.stats().pending == 2
    assert replay_dead_letters(letters, box) == 2
    assert sorted(order.item for order in waiting(box)) == ["a", "b"]
    assert letters.stats().total == 0


def test_the_reply_address_is_resolved(shelf, box, letters):
    replies = shelf("replies")
    box.send(Order("tea"), reply_to=replies)
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    resolver = RegistryResolver({"replies": replies})
    assert replay_dead_letters(letters, box, reply_resolver=resolver) == 1
    run(Worker(box, lambda order: order.item.upper()))
    assert replies.receive()[0].body == "TEA"


def test_a_letter_whose_reply_address_nobody_knows_stays(shelf, box, letters):
    box.send(Order("tea"), reply_to=shelf("replies"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    before = letters.peek()[0].id
    assert replay_dead_letters(letters, box, reply_resolver=RegistryResolver({})) == 0
    assert [(p.id, p.delivery_count) for p in letters.peek()] == [(before, 0)]


def test_a_name_is_enough_where_only_names_travel():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders"), shelf.mailbox("dead")
    box.send("tea", reply_to=shelf.mailbox("replies"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    assert box.receive()[0].envelope.reply_to == "replies"


def test_in_memory_a_lost_address_does_not_hold_the_letter(caplog):
    box, letters = InMemoryMailbox("orders"), InMemoryMailbox("dead")
    box.send("tea", reply_to=InMemoryMailbox("replies"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    assert box.receive()[0].reply_to is None
    assert "reply_resolver=" in caplog.text


def test_bodies_are_sent_as_they_were_stored():
    """Also what the type of today would drop or refuse, and with its class name."""
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    payload = b'{"b":{"item":"tea",  "unknown":1.50},"t":"Order"}'
    box.store.put((Outgoing("x", payload),))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    stored = box.peek()[0].payload
    assert b'{"item":"tea",  "unknown":1.50}' in stored
    assert b'"t":"Order"' in stored


def test_letters_of_a_forgotten_type_can_still_be_replayed():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    fill(box, letters, "tea")
    renamed = shelf.mailbox("orders", body_type=int)
    forgetful = reopened(letters)
    assert replay_dead_letters(forgetful, renamed, predicate=lambda x: "tea" in str(x.body)) == 1
    assert box.stats().pending == 1


def test_an_unreadable_body_is_replayed_as_it_was():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    box.send({"item": 7})
    run(Worker(box, print, dlq=DLQPolicy(letters)))
    assert replay_dead_letters(letters, box) == 1
    assert b'{"item":7}' in box.peek()[0].payload


def test_what_is_no_letter_stays(box, letters, caplog):
    letters.send("hello")
    fill_one = box.send(Order("tea"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    assert letters.stats().pending == 1
    assert "is no dead letter" in caplog.text
    assert fill_one


def test_a_queue_that_cannot_be_looked_into(box, letters, monkeypatch):
    fill(box, letters, "a", "b", "c", "d")
    monkeypatch.setattr(letters, "capabilities", Capabilities(peeks=False))
    assert replay_dead_letters(letters, box, dry_run=True) == 4
    assert letters.stats().pending == 4
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item in "bd")
    assert count == 2
    assert waiting(box) == [Order("b"), Order("d")]
    assert letters.stats().pending == 2
    assert replay_dead_letters(letters, box, limit=1) == 1
    assert letters.stats().pending == 1


def test_replay_tells(box, letters):
    fill(box, letters, "a")
    told = []
    box.dispatcher = InProcessDispatcher()
    box.dispatcher.subscribe(DeadLetterReplayed, told.append)
    replay_dead_letters(letters, box)
    (event,) = told
    assert event.mailbox == "orders-dlq"
    assert box.peek()[0].id == event.message_id


def test_other_peoples_mailboxes_are_refused(box):
    with pytest.raises(UnsupportedOperationError, match="DLQConsumer"):
        replay_dead_letters(object(), box)
