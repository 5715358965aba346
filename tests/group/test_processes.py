"""Real processes, real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weakincentives.runtime.group.signals import SAME_SIGNAL_SECONDS
from weakincentives.runtime.group.watchdog import WATCHDOG_EXIT_CODE

from .http import get

ROOT = Path(__file__).parents[2]


class Child:
    def __init__(self, behaviour):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.group.child", behaviour],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def hear(self, word):
        """Read until the child says this; what it says meanwhile is returned."""
        heard = []
        for line in self.process.stdout:
            heard.append(line.strip())
            if word in (heard[-1], "any"):
                return heard
        raise AssertionError(f"the child said {heard}, not {word!r}: {self.process.stderr.read()}")

    def send(self, number):
        self.sent = time.monotonic()
        self.process.send_signal(number)

    def end(self, within=60):
        """Return exit code, what it still said, its log, and the time since the signal."""
        said, log = self.process.communicate(timeout=within)
        return self.process.returncode, said.split(), log, time.monotonic() - self.sent

    sent = 0.0


@pytest.fixture
def start():
    children = []

    def start(behaviour):
        children.append(Child(behaviour))
        return children[-1]

    yield start
    for child in children:
        child.process.kill()
        child.process.communicate()


def test_a_signal_is_heard_that_did_not_interrupt_the_main_thread(start):
    child = start("signalled_past_the_main_thread")
    child.hear("ready")
    child.sent = time.monotonic()
    child.process.stdin.write("now\n")
    child.process.stdin.flush()
    code, said, _, seconds = child.end()
    assert (code, said) == (0, ["told", "drained"])
    assert seconds < 10 * 1.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_group_ends_within_a_second_in_its_long_poll(start, number):
    child = start("idle")
    child.hear("ready")
    child.send(number)
    code, said, _, seconds = child.end()
    assert (code, said) == (0, ["told", "drained"])
    assert seconds < 10 * 1.0


def test_a_busy_group_finishes_and_answers_probes_meanwhile(start):
    child = start("busy")
    heard = child.hear("working")
    port = next((int(word) for word in heard if word.isdigit()), None)
    if port is None:
        port = int(child.hear("any")[-1])
    address = ("127.0.0.1", port)
    assert get(address, "/health/live")[0] == 200
    assert get(address, "/health/ready")[0] == 200
    child.send(signal.SIGTERM)
    child.hear("told")
    status, body = get(address, "/health/ready")
    assert status == 503
    assert "the group is shutting down" in body["reasons"]
    child.process.stdin.write("go on\n")
    code, said, _, _ = child.end()
    assert (code, said) == (0, ["finished", "drained"])


def test_a_second_signal_ends_at_once(start):
    child = start("hanging")
    child.hear("working")
    child.send(signal.SIGTERM)
    child.hear("told")
    time.sleep(2 * SAME_SIGNAL_SECONDS)  # what comes earlier counts as the same signal
    assert child.process.poll() is None
    child.send(signal.SIGTERM)
    code, said, _, seconds = child.end()
    assert code == -signal.SIGTERM
    assert said == []
    assert seconds < 10 * 1.0


@pytest.mark.parametrize("behaviour", ["signalled_twice", "signalled_twice_with_a_log_that_hangs"])
def test_a_second_signal_is_logged_if_the_log_can_be_written(start, behaviour):
    code, said, log, _ = start(behaviour).end()
    assert (code, said) == (-signal.SIGTERM, ["first"])
    assert ("SIGTERM again: the process ends at once" in log) == (behaviour == "signalled_twice")


def test_two_signals_at_once_are_one(start):
    code, said, _, _ = start("signalled_twice_at_once").end()
    assert (code, said[-1:]) == (0, ["drained"])


def test_a_deadline_that_passes_ends_the_process_all_the_same(start):
    child = start("late")
    child.hear("working")
    child.send(signal.SIGTERM)
    code, said, log, seconds = child.end()
    assert (code, said) == (0, ["told", "cut"])
    assert "did not end within 0.3 s: Saying-0" in log
    assert seconds < 10 * 1.0


def test_a_crash_comes_out_of_the_process(start):
    child = start("crash")
    code, said, log, _ = child.end()
    assert code == 1
    assert said == ["running", "told"]
    assert log.rstrip().endswith("LookupError: the job was bad")


def test_an_exit_in_a_handler_is_the_exit_of_the_process(start):
    assert start("exits").end()[0] == 7


def test_the_watchdog_dumps_the_stacks_and_ends_the_process(start):
    child = start("watched")
    code, said, log, _ = child.end()
    assert code == WATCHDOG_EXIT_CODE
    assert said == ["running", "working"]
    assert "no heartbeat for 1 s from Saying" in log
    assert "in job" in log


def test_the_watchdog_ends_the_process_even_if_the_log_hangs(start):
    child = start("watched_with_a_log_that_hangs")
    code, _, log, _ = child.end()
    assert code == WATCHDOG_EXIT_CODE
    assert "no heartbeat for 1 s from Saying" in log


def test_a_process_that_was_stopped_is_not_bitten_for_it(start):
    child = start("watched_and_well")
    child.hear("ready")
    child.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)
    time.sleep(2.2)  # more than twice the threshold must really pass
    child.process.send_signal(signal.SIGCONT)
    # Long enough for the watchdog to look again.
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.wait(0.5)
    child.send(signal.SIGTERM)
    assert child.end()[:2] == (0, ["told", "drained"])
