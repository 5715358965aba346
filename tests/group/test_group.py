import signal
import threading
import time

import pytest

from testkit.startstop import Crew, exercise, runnable
from testkit.waiting import eventually
from weakincentives.adapters import CallableAdapter
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.runtime import (
    Heartbeat,
    LoopGroup,
    MainLoop,
    MainLoopRequest,
    Worker,
    current_lease,
)
from weakincentives.runtime.mailbox import InMemoryMailbox, InvalidParameterError

from .http import get
from .loops import SmallLoop, loop


class Gate:
    """A handler that waits until it may go on."""

    def __init__(self):
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, body):
        self.entered.set()
        self.go.wait(30)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.go.set()


@pytest.fixture
def crew():
    with Crew() as crew:
        yield crew


def run_in(crew, group, **options):
    crew.add(lambda: group.run(**options))
    eventually(lambda: all(leaf.loop.running for leaf in group._leaves))
    return group


def test_all_loops_run_and_all_stop(crew):
    done = []
    loops = [loop(done.append, number) for number in range(3)]
    group = run_in(crew, LoopGroup(loops))
    eventually(lambda: sorted(done) == [0, 1, 2])
    assert group.running
    began = time.monotonic()
    assert group.shutdown()
    assert time.monotonic() - began < 10  # in the middle of a 20 s long poll
    assert not group.running
    assert group.drained
    assert not any(each.running for each in loops)


def test_it_ends_when_all_loops_have_ended_by_themselves():
    loops = [loop(), loop()]
    group = LoopGroup(loops)
    group.run(max_iterations=1)
    assert group.drained
    with pytest.raises(RuntimeError, match="runs once"):
        group.run()


def test_one_loop_that_ends_leaves_the_others_running(crew):
    one, two = loop(), loop()
    group = run_in(crew, LoopGroup([one, two]))
    one.mailbox.close()
    eventually(lambda: not one.running)
    assert "SmallLoop-0: is not running" in group.ready().body["reasons"]
    assert two.running
    assert group.running
    assert group.live().ok
    assert group.shutdown()


def test_what_a_crashed_loop_raised_comes_out_as_itself():
    class Odd(BaseException):
        pass

    error = Odd("no")

    def fail(body):
        raise error

    other = loop()
    group = LoopGroup([other, loop(fail, "job")])
    with pytest.raises(Odd) as raised:
        group.run()
    assert raised.value is error
    assert not other.running
    assert group.drained


def test_a_crash_makes_the_group_unhealthy_while_it_drains(crew, gate):
    def fail(body):
        assert gate.entered.wait(120)
        raise LookupError("the password is hunter2")

    group = LoopGroup([loop(gate, "slow"), loop(fail, "job")])
    raised = []

    def run():
        try:
            group.run()
        except LookupError as error:
            raised.append(error)

    crew.add(run)
    eventually(lambda: not group.live().ok)
    assert group.live().body["reasons"] == ["SmallLoop-1: crashed with LookupError"]
    eventually(lambda: not group.ready().ok)
    assert "SmallLoop-1: crashed with LookupError" in group.ready().body["reasons"]
    gate.go.set()
    eventually(lambda: raised)


def test_the_first_of_two_crashes_comes_out(gate):
    def first(body):
        assert gate.entered.wait(120)
        raise LookupError

    def second(body):
        gate(body)
        raise ValueError

    class Letting(SmallLoop):
        def shutdown(self, *, timeout=30.0):
            gate.go.set()
            return super().shutdown(timeout=timeout)

    mailbox = InMemoryMailbox("jobs")
    mailbox.send("job")
    with pytest.raises(LookupError):
        LoopGroup([Letting(mailbox, second), loop(first, "job")]).run()


def test_a_job_in_progress_is_finished(crew, gate):
    busy = loop(gate, "job")
    group = run_in(crew, LoopGroup([busy]))
    assert gate.entered.wait(120)
    ended = []
    crew.add(lambda: ended.append(group.shutdown()))
    eventually(lambda: busy.mailbox.closed)
    assert not ended
    gate.go.set()
    eventually(lambda: ended == [True])
    assert busy.mailbox.stats().total == 0


def test_one_deadline_for_all(crew):
    gates = [Gate() for _ in range(10)]
    group = run_in(crew, LoopGroup([loop(gate, "job") for gate in gates]))
    for gate in gates:
        assert gate.entered.wait(120)
    began = time.monotonic()
    assert not group.shutdown(timeout=2)
    eventually(lambda: not group.running)
    assert time.monotonic() - began < 10 * 2  # what it would take one after the other
    assert not group.drained
    for gate in gates:
        gate.go.set()


def test_all_loops_are_told_at_once():
    meeting = threading.Barrier(3)

    class Meeting(SmallLoop):
        def shutdown(self, *, timeout=30.0):
            meeting.wait(60)  # passes only if all are in shutdown() together
            return super().shutdown(timeout=timeout)

    with Crew() as crew:
        group = run_in(
            crew, LoopGroup([Meeting(InMemoryMailbox(f"jobs-{each}")) for each in range(3)])
        )
        assert group.shutdown()


def test_a_shutdown_that_raises_does_not_spare_the_others(crew, caplog):
    class Stubborn(SmallLoop):
        def shutdown(self, *, timeout=30.0):
            super().shutdown(timeout=timeout)
            raise LookupError

    group = run_in(crew, LoopGroup([Stubborn(InMemoryMailbox("jobs")), loop()]))
    assert group.shutdown()
    assert "shutdown() of Stubborn-0 failed" in caplog.text


def test_shutdown_before_run_counts():
    never = loop()
    group = LoopGroup([never], health_port=0)
    assert group.shutdown()
    assert group.shutdown()
    group.run()
    group.run()
    assert not never.mailbox.closed


def test_shutdown_from_a_handler_does_not_wait_for_itself(crew):
    answers = []
    group = LoopGroup([loop(lambda body: answers.append(group.shutdown()), "job"), loop()])
    group.run()
    assert answers == [False]
    assert group.drained
    assert group.shutdown()


def test_shutdown_from_a_pool_of_the_loop_does_not_wait_for_itself():
    class Pooled(SmallLoop):
        """Runs its jobs in other threads, as a loop with concurrency does."""

        def __init__(self, mailbox, handle):
            super().__init__(mailbox)
            self.job = handle
            self.handle = self.elsewhere

        def elsewhere(self, body):
            def work():
                with self.heartbeat.working():
                    self.job(body)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    mailbox = InMemoryMailbox("jobs")
    mailbox.send("job")
    answers = []
    began = time.monotonic()
    group = LoopGroup([Pooled(mailbox, lambda body: answers.append(group.shutdown()))])
    group.run()
    assert answers == [False]
    assert time.monotonic() - began < 10


def test_a_sigterm_ends_a_long_poll():
    idle = loop()
    group = LoopGroup([idle])

    def send():
        eventually(lambda: idle.running)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with Crew() as crew:
        crew.add(send)
        began = time.monotonic()
        group.run()
    assert time.monotonic() - began < 10
    assert group.drained
    assert signal.getsignal(signal.SIGTERM) is before


def test_shutdown_from_a_signal_handler_of_ones_own():
    idle, answers = loop(), []
    group = LoopGroup([idle])
    before = signal.signal(signal.SIGTERM, lambda *_: answers.append(group.shutdown()))
    try:
        with Crew() as crew:

            def send():
                eventually(lambda: idle.running)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

            crew.add(send)
            group.run(install_signals=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert answers == [False]
    assert group.drained


def test_ctrl_c_without_our_handlers_stops_the_loops_too():
    idle = loop()
    # A shell that starts these tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Crew() as crew:

            def send():
                eventually(lambda: idle.running)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            crew.add(send)
            with pytest.raises(KeyboardInterrupt):
                LoopGroup([idle]).run(install_signals=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not idle.running


def test_outside_the_main_thread_signals_are_left_alone(crew, caplog):
    caplog.set_level("INFO")
    before = signal.getsignal(signal.SIGTERM)
    group = run_in(crew, LoopGroup([loop()]))
    assert signal.getsignal(signal.SIGTERM) is before
    assert "no signal handlers" in caplog.text
    assert group.shutdown()


def test_readiness_follows_the_loops(crew):
    group = LoopGroup([loop(), loop()], health_port=0)
    assert group.health_address is None
    assert not group.ready().ok
    run_in(crew, group)
    eventually(lambda: group.health_address)
    address = group.health_address
    eventually(lambda: get(address, "/health/ready")[0] == 200)
    assert get(address, "/health/live") == (200, {"status": "live", "reasons": []})
    assert group.shutdown()
    assert group.health_address is None
    assert group.ready().body["reasons"][0] == "the group is shutting down"


def test_the_depth_of_the_dead_letters_is_shown(crew):
    class Policy:
        mailbox = InMemoryMailbox("jobs-dlq")

    Policy.mailbox.send("dead")
    one, two = loop(), loop()
    one.dlq = two.dlq = Policy()
    group = run_in(crew, LoopGroup([one, two]))
    [letters] = group.ready().body["dead_letters"]
    assert (letters["name"], letters["depth"]) == ("jobs-dlq", 1)
    assert group.shutdown()


def test_probes_answer_while_a_loop_is_busy(crew, gate):
    group = run_in(crew, LoopGroup([loop(gate, "job")], health_port=0))
    assert gate.entered.wait(120)
    assert get(group.health_address, "/health/live")[0] == 200
    assert get(group.health_address, "/health/ready")[0] == 200
    gate.go.set()
    assert group.shutdown()


def test_a_taken_port_starts_nothing(crew):
    first = run_in(crew, LoopGroup([loop()], health_port=0))
    never = loop(lambda body: None, "job")
    with pytest.raises(OSError, match="health server"):
        LoopGroup([never], health_port=first.health_address[1]).run()
    assert never.mailbox.approximate_count() == 1
    assert first.shutdown()


def test_a_group_can_be_a_loop_of_a_group(crew):
    inner = LoopGroup([loop(), loop()])
    outer = run_in(crew, LoopGroup([inner, loop()], watchdog_threshold=100))
    eventually(lambda: outer.ready().ok)
    assert len(outer.ready().body["loops"]) == 3
    assert isinstance(outer.heartbeat, Heartbeat)
    assert outer.shutdown()
    assert not inner.running
    assert inner.drained


def test_a_group_is_not_drained_while_a_group_inside_it_is_not(crew, gate):
    inner = LoopGroup([loop(gate, "job")])
    outer = run_in(crew, LoopGroup([inner], shutdown_timeout=0.2))
    assert gate.entered.wait(120)
    assert not outer.shutdown()
    assert not inner.drained
    assert not outer.drained


def test_a_thread_that_cannot_start_stops_those_that_did(monkeypatch):
    loops = [loop(), loop()]
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "SmallLoop-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        LoopGroup(loops).run()
    assert not loops[0].running


def test_loops_are_told_even_when_no_thread_is_left(crew, monkeypatch):
    group = run_in(crew, LoopGroup([loop(), loop()]))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert group.shutdown()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loops": []}, "at least one"),
        ({"loops": iter([])}, "at least one"),
        ({"loops": loop()}, "a list of loops"),
        ({"loops": None}, "a list of loops"),
        ({"loops": [object()]}, "object has no run, shutdown, running, heartbeat"),
        ({"shutdown_timeout": 0}, "shutdown_timeout"),
        ({"watchdog_threshold": -1}, "watchdog_threshold"),
        ({"ready_within": "soon"}, "ready_within"),
        ({"health_port": 70_000}, "health_port"),
        ({"health_port": "80"}, "health_port"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        LoopGroup(**{"loops": [loop()], **options})


def test_loops_may_come_from_a_generator():
    assert len(LoopGroup(loop() for _ in range(2)).members) == 2


def test_a_watchdog_that_would_bite_idle_loops_is_refused():
    with pytest.raises(InvalidParameterError, match="wait_time_seconds"):
        LoopGroup([loop()], watchdog_threshold=20).run(wait_time_seconds=20)
    with pytest.raises(InvalidParameterError, match="timeout"):
        LoopGroup([loop()]).shutdown(timeout=-1)


def test_start_and_stop_in_any_order():
    exercise(
        runnable(
            lambda: LoopGroup([loop(), loop()], health_port=0, watchdog_threshold=100),
            runs_twice=False,
        )
    )


def test_the_small_loop_of_these_tests_behaves_too():
    exercise(runnable(loop))


def test_each_loop_has_its_own_lease_unless_the_group_is_told_one():
    for told, expected in ((None, [60, 300]), (45, [45, 45])):
        seen = []

        def handle(body, seen=seen):
            seen.append(round(current_lease().remaining()))

        boxes = [FakeMailbox("jobs"), FakeMailbox("requests")]
        boxes[0].send("a")
        boxes[1].send(MainLoopRequest(request="a"))
        loops = [
            Worker(boxes[0], handle),
            MainLoop(adapter=CallableAdapter(handle), requests=boxes[1]),
        ]
        options = {} if told is None else {"visibility_timeout": told}
        LoopGroup(loops).run(max_iterations=1, install_signals=False, **options)
        assert sorted(seen) == expected
