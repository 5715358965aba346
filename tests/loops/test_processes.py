"""Workers that die, freeze and kill, as real processes on durable mailboxes."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testkit.forked import ForkedProcess
from testkit.waiting import eventually
from tests.loops.child import serve
from weakincentives import connect
from weakincentives.runtime import DeadLetter

pytestmark = pytest.mark.slow

LEASE = 1.0


@pytest.fixture(params=["sqlite", "redis"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/queues.db"
    return request.getfixturevalue("redis_url")


@pytest.fixture
def backend(url):
    with connect(url) as backend:
        for name in ("jobs", "results", "dead"):
            backend.mailbox(name).purge()
        yield backend


@pytest.fixture(params=["plain", "async"])
def kind(request):
    """The kind of handler."""
    return request.param


@contextmanager
def child(
    kind: str,
    url: str,
    max_deliveries: int = 5,
    concurrency: int = 1,
    batch: int = 1,
    lease: float = LEASE,
) -> Iterator[ForkedProcess]:
    process = ForkedProcess(serve, kind, url, lease, max_deliveries, concurrency, batch)
    with process.output:
        try:
            assert said(process) == "ready"
            yield process
        finally:
            process.kill()


def said(process: ForkedProcess) -> str:
    return process.output.readline().strip()


def send(backend, name, *behaviours):
    backend.mailbox("jobs").send(
        {"name": name, "behaviours": behaviours}, reply_to=backend.mailbox("results")
    )


def results(backend, count, timeout=120.0):
    """Receive so many results, and make sure that there are no more."""
    box, found = backend.mailbox("results"), []
    deadline = time.monotonic() + timeout
    while len(found) < count and time.monotonic() < deadline:
        for message in box.receive(max_messages=10, wait_time_seconds=1):
            found.append(message.body)
            message.acknowledge()
    assert box.receive(wait_time_seconds=0.2) == []
    return found


def killed_mid_job(backend, kind, url, times):
    slowest = 0.0
    for n in range(times):
        send(backend, f"job-{n}", "hang", "do")
        with child(kind, url) as victim:
            assert said(victim) == f"job-{n} 1 hang"
            with child(kind, url) as heir:
                victim.kill()
                died = time.monotonic()
                assert said(heir) == f"job-{n} 2 do"
                slowest = max(slowest, time.monotonic() - died)
                (result,) = results(backend, 1)
                assert result == {"name": f"job-{n}", "by": heir.pid}
    assert backend.mailbox("jobs").stats().total == 0
    assert backend.mailbox("dead").stats().total == 0
    # a lease and a second is promised
    assert slowest < 10 * (LEASE + 1)


def test_killed_mid_job(backend, kind, url):
    killed_mid_job(backend, kind, url, 2)


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_killed_mid_job_a_hundred_times(backend, kind, url, part):
    killed_mid_job(backend, kind, url, 25)


def stopped_beyond_its_lease(backend, kind, url, times):
    for n in range(times):
        send(backend, f"job-{n}", "stop", "do")
        with child(kind, url) as sleeper:
            assert said(sleeper) == f"job-{n} 1 stop"
            with child(kind, url) as heir:
                assert said(heir) == f"job-{n} 2 do"
                (result,) = results(backend, 1)
                assert result["by"] == heir.pid
            os.kill(sleeper.pid, signal.SIGCONT)
            # It goes on, and is of use again; what it had done by itself is seen by nobody.
            send(backend, f"after-{n}", "do")
            assert said(sleeper) == f"after-{n} 1 do"
            (result,) = results(backend, 1)
            assert result == {"name": f"after-{n}", "by": sleeper.pid}
    assert backend.mailbox("jobs").stats().total == 0


def test_stopped_beyond_its_lease(backend, kind, url):
    stopped_beyond_its_lease(backend, kind, url, 1)


@pytest.mark.full
def test_stopped_beyond_its_lease_twenty_times(backend, kind, url):
    stopped_beyond_its_lease(backend, kind, url, 20)


def test_a_job_that_kills_its_worker_ends_in_the_dead_letters(backend, kind, url):
    send(backend, "poison", "die")
    deaths = 0
    while True:
        send(backend, f"other-{deaths}", "do")
        with child(kind, url, max_deliveries=3) as process:
            if deaths < 3:
                lines = [line.strip() for line in process.output]
                assert process.wait(120) == 7
                deaths += 1
                assert f"poison {deaths} die" in lines
                continue
            eventually(lambda: backend.mailbox("dead").stats().pending == 1, within=120)
            eventually(lambda: backend.mailbox("jobs").stats().total == 0, within=120)
            break
    (letter,) = backend.mailbox("dead", body_type=DeadLetter).receive()
    assert letter.body.last_error_type.endswith("RepeatedCrashError")
    assert letter.body.body["name"] == "poison"
    assert letter.body.delivery_count == 4
    found = results(backend, 5)
    names = [result["name"] for result in found]
    assert sorted(filter(None, names)) == [f"other-{n}" for n in range(4)]
    (told,) = [result["error"] for result in found if "error" in result]
    assert told.startswith("Dead-lettered after 4 attempts: RepeatedCrashError")


def poison_among_innocents(backend, kind, url, *, concurrency, poisons, innocents, max_deliveries):
    """Serve with batches of ten until all is done, with as many workers as it kills.

    Returns how many were killed.
    """
    jobs, dead = backend.mailbox("jobs"), backend.mailbox("dead", body_type=DeadLetter)
    places = {(innocents * (n + 1)) // (poisons + 1) for n in range(poisons)}
    bad = [f"bad-{n}" for n in range(poisons)]
    good = [f"good-{n}" for n in range(innocents)]
    killing = iter(bad)
    for n, name in enumerate(good):
        if n in places:
            send(backend, next(killing), "die" if n % 2 else "kill")
        send(backend, name, "last")
    deaths, deadline = 0, time.monotonic() + 300
    while True:
        # A lease that runs out because the machine is busy would count as a crash.
        with child(kind, url, max_deliveries, concurrency, batch=10, lease=3 * LEASE) as process:
            while process.exitcode is None and jobs.stats().total:
                assert time.monotonic() < deadline, (deaths, jobs.stats(), dead.stats())
                time.sleep(0.02)
            if process.exitcode is None:
                break
            deaths += 1
    letters = [message.body for message in dead.receive(max_messages=100)]
    assert sorted(letter.body["name"] for letter in letters) == bad
    found = [result["name"] for result in results(backend, innocents + poisons)]
    assert sorted(name for name in found if name in good) == sorted(good)
    return deaths


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_poison_job_takes_nothing_else_to_the_dead_letters(backend, kind, url, concurrency):
    """What waited, had finished or was running beside it when its worker died is innocent."""
    deaths = poison_among_innocents(
        backend, kind, url, concurrency=concurrency, poisons=2, innocents=12, max_deliveries=3
    )
    assert 3 <= deaths <= 6


@pytest.mark.full
@pytest.mark.parametrize("concurrency", [1, 4])
def test_many_poison_jobs_take_nothing_else_to_the_dead_letters(backend, kind, url, concurrency):
    deaths = poison_among_innocents(
        backend, kind, url, concurrency=concurrency, poisons=5, innocents=60, max_deliveries=4
    )
    assert 4 <= deaths <= 20
