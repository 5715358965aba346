"""Workers on SQS: killed in the middle of a job, and dead letters sent again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testkit.cloud import CREDENTIALS, REGION
from weakincentives import connect
from weakincentives.ids import new_id
from weakincentives.runtime import Backoff, DLQPolicy, Worker, WorkerConfig, replay_dead_letters

ROOT = Path(__file__).parents[3]
LEASE = 2

WORKER = """
import sys, time
from weakincentives import connect
from weakincentives.runtime import Worker, current_lease

def handle(body):
    delivery = current_lease().message.delivery_count
    print(body, delivery, flush=True)
    if body == "hang" and delivery == 1:
        time.sleep(600)
    return body

backend = connect(sys.argv[1])
jobs, results = backend.mailbox(sys.argv[2]), backend.mailbox(sys.argv[3])
print("ready", flush=True)
Worker(jobs, handle, responses=results).run(visibility_timeout=int(sys.argv[4]))
"""


@pytest.fixture
def url(ministack_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name.upper(), value)
    prefix = f"t{new_id()[:8].replace('_', '-')}-"
    return f"sqs://{REGION}?endpoint={ministack_endpoint}&prefix={prefix}&create=true"


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def suffix(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextmanager
def worker(url: str, suffix: str) -> Iterator["subprocess.Popen[str]"]:
    queues = [f"jobs{suffix}", f"results{suffix}", str(LEASE)]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, *queues],
        cwd=ROOT,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert said(process) == "ready"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_killed_workers_job_is_done_by_another(url: str, suffix: str) -> None:
    with connect(url) as backend:
        jobs, results = backend.mailbox(f"jobs{suffix}"), backend.mailbox(f"results{suffix}")
        jobs.send("hang")
        jobs.send("next")
        with worker(url, suffix) as victim:
            assert said(victim) == "hang 1"
            victim.kill()
            died = time.monotonic()
        with worker(url, suffix) as heir:
            heard = [said(heir), said(heir)]
            assert sorted(heard) == ["hang 2", "next 1"]
            if suffix:
                assert heard == ["hang 2", "next 1"]  # nothing of a group overtakes
            assert time.monotonic() - died < 20 * (LEASE + 1)
            got: list[str] = []
            while len(got) < 2:
                for message in results.receive(max_messages=10, wait_time_seconds=20):
                    got.append(message.body)
                    message.acknowledge()
            assert sorted(got) == ["hang", "next"]


def test_a_dead_letter_is_sent_again(url: str, suffix: str) -> None:
    with connect(url) as backend:
        jobs, dead = backend.mailbox(f"jobs{suffix}"), backend.mailbox(f"dead{suffix}")
        handled: list[str] = []
        broken = True

        def handle(body: str) -> None:
            if broken:
                raise ValueError("not yet")
            handled.append(body)

        loop: Worker[str, None] = Worker(
            jobs,
            handle,
            dlq=DLQPolicy(mailbox=dead, max_delivery_count=2),
            config=WorkerConfig(backoff=Backoff(base=0, cap=0)),
        )
        jobs.send("tea")
        for _ in range(2):
            loop.run(max_iterations=1, visibility_timeout=LEASE, wait_time_seconds=20)
        broken = False
        assert replay_dead_letters(dead, jobs) == 1
        loop.run(max_iterations=1, visibility_timeout=LEASE, wait_time_seconds=20)
        assert handled == ["tea"]
