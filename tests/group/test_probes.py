import threading
import time

import pytest

from testkit.waiting import eventually
from weakincentives.adapters import CallableAdapter
from weakincentives.evals import EvalLoop, exact_match
from weakincentives.runtime import DLQConsumer, DLQPolicy, Heartbeat, LoopGroup, MainLoop, Worker
from weakincentives.runtime.group.readiness import DeadLetterDepths, LoopState, liveness, readiness
from weakincentives.runtime.mailbox import InMemoryMailbox, MailboxConnectionError


def looked():
    heart = Heartbeat()
    heart.looked()
    return heart


def test_alive_until_a_loop_crashes():
    assert liveness([("a", None)]).ok
    report = liveness([("a", None), ("b", "KeyError")])
    assert not report.ok
    assert report.body == {"status": "crashed", "reasons": ["b: crashed with KeyError"]}


def test_ready_if_every_loop_has_looked():
    report = readiness([LoopState("a", True, looked())], within=10)
    assert report.ok
    assert report.body == {
        "status": "ready",
        "reasons": [],
        "loops": [{"name": "a", "running": True, "ready": True, "seconds_since_beat": 0.0}],
        "dead_letters": [],
    }


def test_every_reason_is_told():
    report = readiness(
        [
            LoopState("a", True, looked()),
            LoopState("b", True, Heartbeat()),
            LoopState("c", False, looked()),
            LoopState("d", False, looked(), "KeyError"),
        ],
        within=10,
        stopping=True,
    )
    assert not report.ok
    assert report.body["reasons"] == [
        "the group is shutting down",
        "b: has not received from its mailbox yet",
        "c: is not running",
        "d: crashed with KeyError",
    ]


def test_depths_are_counted():
    dead = InMemoryMailbox("dead")
    dead.send("letter")
    [reading] = DeadLetterDepths([dead]).read()
    assert reading["name"] == "dead"
    assert reading["depth"] == 1


def loops(dlq):
    """Every kind of loop that has to do with dead letters."""
    requests, main = InMemoryMailbox("jobs"), {"adapter": CallableAdapter(str)}
    return [
        Worker(requests, print, dlq=dlq),
        MainLoop(requests=requests, dlq=dlq, **main),
        EvalLoop(
            loop=MainLoop(requests=InMemoryMailbox("unused"), **main),
            evaluator=exact_match,
            requests=requests,
            dlq=dlq,
        ),
        DLQConsumer(mailbox=dlq.mailbox, handler=print),
    ]


@pytest.mark.parametrize("number", range(4))
def test_every_kind_of_loop_shows_its_dead_letters(number):
    dead = InMemoryMailbox("dead")
    dead.send_batch(["letter"] * 3)
    loop = loops(DLQPolicy(mailbox=dead))[number]
    [reading] = LoopGroup([loop]).ready().body["dead_letters"]
    assert (reading["name"], reading["depth"]) == ("dead", 3)


def test_dead_letters_of_several_loops_are_shown_once():
    policy = DLQPolicy(mailbox=InMemoryMailbox("dead"))
    assert len(LoopGroup(loops(policy)).ready().body["dead_letters"]) == 1


def test_no_thread_left_to_count_with_is_told_and_is_no_failure(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    depths = DeadLetterDepths([InMemoryMailbox("dead")])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        [reading] = depths.read()
    assert (reading["depth"], reading["error"]) == (None, "RuntimeError")
    [reading] = depths.read()
    assert reading["depth"] == 0
    assert "error" not in reading


class Broker:
    """A broker that hangs on demand."""

    def __init__(self, name="dead"):
        self.name = name
        self.go = threading.Event()
        self.go.set()
        self.asked = 0
        self.error = None

    def approximate_count(self):
        self.asked += 1
        self.go.wait(30)
        if self.error is not None:
            raise self.error
        return self.asked


def test_a_hanging_broker_never_holds_the_probe_and_holds_one_thread(monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.group.readiness.MAX_AGE", 1000.0)
    hanging, fine = Broker("hanging"), Broker("fine")
    hanging.go.clear()
    depths = DeadLetterDepths([hanging, fine])
    began = time.monotonic()
    for _ in range(5):
        readings = {reading["name"]: reading["depth"] for reading in depths.read()}
        assert readings == {"hanging": None, "fine": 1}
    assert time.monotonic() - began < 10
    assert hanging.asked == 1
    hanging.go.set()
    eventually(lambda: depths.read()[0]["depth"] == 1)


def test_a_failing_broker_is_shown_with_the_last_known_depth(monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.group.readiness.MAX_AGE", 0.0)
    broker = Broker()
    depths = DeadLetterDepths([broker])
    assert depths.read()[0]["depth"] == 1
    broker.error = MailboxConnectionError("redis://:hunter2@host")
    [reading] = depths.read()
    assert reading["depth"] == 1
    assert reading["error"] == "MailboxConnectionError"
    broker.error = None
    [reading] = depths.read()
    assert reading["depth"] == 3
    assert "error" not in reading
