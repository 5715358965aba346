import threading
import time

from tests.support.waiting import eventually

from weakincentives.runtime import Heartbeat
from weakincentives.runtime.mailbox import InMemoryMailbox, MailboxConnectionError
from weakincentives.runtime.probes import DeadLetterDepths, LoopState, liveness, readiness


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
        "b: has not looked into its mailbox yet",
        "c: is not running",
        "d: crashed with KeyError",
    ]


def test_depths_are_counted():
    dead = InMemoryMailbox("dead")
    dead.send("letter")
    [reading] = DeadLetterDepths([dead]).read()
    assert reading["name"] == "dead"
    assert reading["depth"] == 1


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
    monkeypatch.setattr("weakincentives.runtime.probes.FRESH", 1000.0)
    hanging, fine = Broker("hanging"), Broker("fine")
    hanging.go.clear()
    depths = DeadLetterDepths([hanging, fine])
    began = time.monotonic()
    for _ in range(5):
        readings = {reading["name"]: reading["depth"] for reading in depths.read()}
        assert readings == {"hanging": None, "fine": 1}
    assert time.monotonic() - began < 3 * 0.5
    assert hanging.asked == 1
    hanging.go.set()
    eventually(lambda: depths.read()[0]["depth"] == 1)


def test_a_failing_broker_is_shown_with_the_last_known_depth(monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.probes.FRESH", 0.0)
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
