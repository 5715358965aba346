"""Async jobs share a client and a semaphore, which belong to one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.examples.model import Model
from weakincentives import connect
from weakincentives.ids import new_id
from weakincentives.runtime import AsyncJob, DLQPolicy, Worker, WorkerConfig

CALLS_AT_ONCE = 20


@dataclass
class Shared:
    client: httpx.AsyncClient
    calls: asyncio.Semaphore
    all_inside: asyncio.Event


@asynccontextmanager
async def shared() -> AsyncIterator[Shared]:
    limits = httpx.Limits(max_keepalive_connections=CALLS_AT_ONCE)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        yield Shared(client, asyncio.Semaphore(CALLS_AT_ONCE), asyncio.Event())


@pytest.fixture(params=["sqlite", "redis"])
def backend(request, tmp_path):
    url = (
        f"sqlite:///{tmp_path}/jobs.db?durability=normal"
        if request.param == "sqlite"
        else request.getfixturevalue("redis_url")
    )
    with connect(url) as backend:
        yield backend


@pytest.mark.parametrize(("count", "concurrency"), [(64, 8), (500, 500)])
def test_no_job_fails_because_it_shares(backend, count, concurrency):
    answers, inside = [], 0

    async def ask(number: int, job: AsyncJob) -> None:
        nonlocal inside
        inside += 1
        if inside == concurrency:
            job.resources.all_inside.set()
        await job.resources.all_inside.wait()
        async with job.resources.calls:
            response = await job.resources.client.post(
                model.url, json={"prompt": f"number {number}"}
            )
        answers.append(response.raise_for_status().text)
        if len(answers) == count:
            worker.shutdown(timeout=0)

    jobs, dead = (backend.mailbox(f"{name}-{new_id()}") for name in ("jobs", "dead"))
    worker = Worker(
        jobs,
        ask,
        resources=shared,
        dlq=DLQPolicy(dead, max_delivery_count=1),
        config=WorkerConfig(concurrency=concurrency),
    )
    jobs.send_batch(list(range(count)))
    with Model() as model:
        worker.run()
    assert sorted(answers) == sorted(f"NUMBER {number}" for number in range(count))
    assert (jobs.stats().total, dead.stats().total) == (0, 0)
