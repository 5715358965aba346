"""A process that tests start ends with them, however they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.processes import Process, alive
from testkit.waiting import eventually

# Starts a process on a thread that then exits, since that must not end the process.
OWNER = """
import os, pathlib, sys, threading, time
from testkit.processes import Process
here = pathlib.Path(sys.argv[1])
started = []
thread = threading.Thread(
    target=lambda: started.append(Process(["sleep", "60"], here, here / "log"))
)
thread.start()
thread.join()
bystander = os.fork() if "fork" in sys.argv else 0
if "fork" in sys.argv and not bystander:
    time.sleep(60)
print(started[0].pid, bystander, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_a_process_does_not_outlive_its_owner(
    end: str, fork: bool, paused: bool, tmp_path: Path
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), *(["fork"] if fork else [])],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdin
        assert owner.stdout
        pid, bystander = map(int, owner.stdout.readline().split())
        try:
            assert alive(pid)
            if paused:
                os.kill(pid, signal.SIGSTOP)
            if end == "exit":
                owner.stdin.close()
            else:
                owner.kill()
            eventually(lambda: not alive(pid), 60, "the process to be gone")
        finally:
            owner.kill()
            if fork:
                os.kill(bystander, signal.SIGKILL)


def test_a_process_is_killed_paused_or_not(tmp_path: Path) -> None:
    for paused in (False, True):
        process = Process(["sleep", "60"], tmp_path, tmp_path / "log")
        if paused:
            process.pause()
        assert process.running
        process.kill()
        assert not process.running
        assert not alive(process.pid)
        process.kill()


def test_what_a_process_forked_is_killed_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Process(["sh", "-c", "sleep 60 & echo $!; wait"], tmp_path, log)
    eventually(lambda: log.read_text().endswith("\n"), 60, "the process to fork")
    process.kill()
    eventually(lambda: not alive(int(log.read_text())), 60, "what it forked to be gone")


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Process(["sh", "-c", "trap '' TERM; echo ready; exec sleep 60"], tmp_path, log)
    eventually(lambda: log.read_text() == "ready\n", 60, "the trap to be set")
    process.terminate(0.1)
    assert not alive(process.pid)


def test_what_a_process_says_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Process(["sh", "-c", "echo out; echo err >&2; cat"], tmp_path, log)
    eventually(lambda: not process.running, 60, "the end, since its input is empty")
    assert log.read_text() == "out\nerr\n"


def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, 0, 7, 8])
    assert eventually(lambda: next(values), 60, "seven") == 7


def test_eventually_says_what_it_waited_for_and_why_in_vain() -> None:
    with pytest.raises(TimeoutError, match="a miracle") as raised:
        eventually(lambda: 1 // 0, 0, "a miracle", ignoring=(ZeroDivisionError,))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
