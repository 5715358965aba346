"""The file: processes that die in it, and a disk that is full."""

import signal
import time

from chaos import checkers, roles, snapshots
from chaos.forks import fork_among_threads
from chaos.ledger import Ledger
from chaos.stage import NotRun, Result, Stage, scenario

LEASE = 0.2
AT_ONCE = 3
ENDS = {2: "a child did not end", 3: "a child failed", 4: "a thread did not end"}


@scenario("sqlite", full=1000, short=12)
def process_kill(stage: Stage):
    """kill -9 of a process at any moment of sending, receiving and settling"""
    living = []
    for trial in range(stage.trials):
        living.append(stage.child(roles.churn, stage.rng.getrandbits(32), LEASE))
        if len(living) == AT_ONCE:
            time.sleep(stage.rng.uniform(0.0, 0.06))  # to meet it anywhere
            victim = living.pop(0)
            stage.log.mark("kill", victim.name)
            victim.kill()
        if trial % 100 == 99:
            stage.violations += snapshots.integrity(stage.path)
    for child in living:
        child.kill()
    stage.drain(lease=5)
    stage.violations += snapshots.integrity(stage.path)
    return stage.verdict(ordered=True)


@scenario("sqlite", full=200, short=80)
def kill_at_every_statement(stage: Stage):
    """kill -9 before each SQL statement of each kind of step"""
    for number in range(1, stage.trials + 1):
        child = stage.child(roles.statements, number)
        child.join(120)
        stage.violations += checkers.exclusive(stage.snapshot())
        if child.exitcode not in (0, -signal.SIGKILL):
            stage.violations.append(f"{child.name} ended with {child.exitcode}")
        if stage.violations or child.exitcode == 0:  # it has fewer statements than that
            break
    stage.violations += snapshots.integrity(stage.path)
    # Those that are to come in a minute stay where they are.
    return stage.verdict(trials=number)


@scenario("sqlite", full=10, short=1)
def disk_full(stage: Stage):
    """a disk without room: a typed error, nothing lost, and work goes on once there is room"""
    for _trial in range(stage.trials):
        child = stage.child(roles.fill_a_disk, str(stage.directory), stage.rng.getrandbits(32))
        child.join(120)
        report = stage.directory / f"{child.name}.report"
        if child.exitcode == 77:
            raise NotRun(report.read_text())
        problems = report.read_text() if report.exists() else "it left no report"
        if child.exitcode != 0 or problems:
            stage.violations.append(f"{child.name}: exit {child.exitcode}, {problems}")
    return Result(stage.trials, stage.violations)


@scenario("sqlite", "redis", full=10, short=1)
def fork_after_connect(stage: Stage):
    """fork of a process that has used a mailbox: parent and child both go on"""
    for _ in range(stage.trials):
        child = stage.child(roles.fork_and_go_on, 30)
        if not child.join(120) or child.exitcode != 0:
            stage.violations.append(f"parent or child failed: exit {child.exitcode}")
    stage.drain()
    return stage.verdict()


@scenario("sqlite", "redis", full=10, short=1)
def forks_among_threads(stage: Stage):
    """a process that forks again and again while its other threads open and drop backends"""
    forks = 50 if stage.full else 15
    ledger = Ledger(stage.directory / "ledger")
    stage.resources.callback(ledger.close)
    for _ in range(stage.trials):
        child = stage.child(fork_among_threads, str(stage.directory / "ledger"), forks)
        if not child.join(120):
            stage.violations.append("stuck: a fork among threads did not end")
            child.kill()
        elif child.exitcode:
            stage.violations.append(f"stuck: {ENDS.get(child.exitcode, child.exitcode)}")
    sent, there = len(ledger.ids()), stage.connection.mailbox("jobs").purge()
    if there < sent:
        stage.violations.append(f"lost: {sent - there} of {sent} sends")
    return Result(stage.trials, stage.violations, {"forks": stage.trials * forks, "sent": sent})
