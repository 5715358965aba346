"""The web API for long jobs: server and worker are real processes that are killed and restarted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from testkit.ports import HOST, reserved_port
from testkit.waiting import eventually
from tests.services import redis_url

__all__ = ["redis_url"]

ROOT = Path(__file__).parents[2]
LONG = {"topic": "tea", "chapters": 100_000}


@pytest.fixture(params=["sqlite", "redis"])
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        found: str = request.getfixturevalue("redis_url")
        return found
    return f"sqlite:///{tmp_path}/research.db"


@contextmanager
def process(queues: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    running = subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=ROOT, env={**os.environ, "QUEUES_URL": queues}
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@contextmanager
def server(queues: str) -> Iterator[httpx.Client]:
    with reserved_port() as port:
        arguments = ("--host", HOST, "--port", str(port), "--log-level", "warning")
        with (
            process(queues, "uvicorn", "examples.fastapi_jobs:app", *arguments),
            httpx.Client(base_url=f"http://{HOST}:{port}", timeout=120) as client,
        ):
            eventually(
                lambda: client.get("/jobs/none").status_code == 404,
                what="the server",
                ignoring=(httpx.TransportError,),
            )
            yield client


def worker(queues: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    return process(
        queues, "weakincentives.cli", "worker", "examples.fastapi_jobs:worker", "--url", queues
    )


def state(client: httpx.Client, id: str) -> str:
    found: str = client.get(f"/jobs/{id}").json()["state"]
    return found


def events(client: httpx.Client, id: str, most: int, after: int | None = None) -> list[str]:
    """Read some lines of the stream."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    lines = []
    with client.stream("GET", f"/jobs/{id}/events", headers=headers) as response:
        for line in response.iter_lines():
            if line:
                lines.append(line)
            if len(lines) >= most:
                break
    return lines


def test_a_job_outlives_every_process(queues: str) -> None:
    with server(queues) as client:
        id = client.post("/jobs", json={"topic": "tea"}).json()["id"]
        assert state(client, id) == "queued"
    with worker(queues), server(queues) as client:
        eventually(lambda: state(client, id) == "done")
        assert events(client, id, 100) == [
            *("id: 0", "data: tea, part 1", "id: 1", "data: tea, part 2"),
            *("id: 2", "data: tea, part 3", "event: end", "data: done"),
        ]
        assert events(client, id, 100, after=1)[:2] == ["id: 2", "data: tea, part 3"]
    with server(queues) as client:
        found = client.get(f"/jobs/{id}").json()
        assert (found["state"], found["answer"]) == ("done", "3 chapters on tea")
        assert client.delete(f"/jobs/{id}").json() == {"cancelled": False}


def test_a_running_job_is_watched_and_cancelled(queues: str) -> None:
    with worker(queues), server(queues) as client:
        id = client.post("/jobs", json=LONG).json()["id"]
        assert events(client, id, 4) == ["id: 0", "data: tea, part 1", "id: 1", "data: tea, part 2"]
        assert state(client, id) == "running"
        assert client.delete(f"/jobs/{id}").json() == {"cancelled": True}
        assert state(client, id) == "cancelled"
        # Its place is free again, and nothing of it is left.
        assert client.post("/ask", json={"topic": "milk"}).json() == "3 chapters on milk"


def test_a_killed_worker_is_replaced(queues: str) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(server(queues))
        with worker(queues) as killed:
            id = client.post("/jobs", json=LONG).json()["id"]
            eventually(lambda: state(client, id) == "running")
            killed.send_signal(signal.SIGTERM)
            killed.wait(60)
        eventually(lambda: state(client, id) in ("retrying", "queued"))
        stack.enter_context(worker(queues))
        eventually(lambda: state(client, id) == "running")
        assert client.delete(f"/jobs/{id}").json() == {"cancelled": True}


def test_two_hundred_callers_wait_at_once(queues: str) -> None:
    # Each on a connection of its own, as different callers have; only what every client reads from
    # the disk is shared, the certificates that it trusts.
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
    with worker(queues), server(queues) as client:

        def ask(number: int) -> str:
            question, most = {"topic": str(number)}, {"timeout": 100}
            answer: str = everybody.post("/ask", json=question, params=most).json()
            return answer

        with (
            httpx.Client(base_url=client.base_url, timeout=120, limits=limits) as everybody,
            ThreadPoolExecutor(200) as callers,
        ):
            answers = list(callers.map(ask, range(200)))
        assert answers == [f"3 chapters on {number}" for number in range(200)]


def test_a_caller_does_not_wait_for_ever(queues: str) -> None:
    with server(queues) as client:
        for path in ("/jobs/nobody", "/jobs/nobody/events", "/jobs/bad%20id"):
            assert client.get(path).status_code == 404
        assert client.delete("/jobs/nobody").status_code == 404
        assert (
            client.post("/ask", json={"topic": "tea"}, params={"timeout": 0.1}).status_code == 504
        )
