"""Workers whose jobs are tasks of one event loop: killed, frozen, cut off and cancelled."""

import asyncio
from functools import partial
from typing import Any

from chaos import roles
from chaos.awaited import awaited_mailbox
from chaos.crews import LEASE, frozen_in_turn, judged, killed_in_turn
from chaos.load import Load
from chaos.processes import Child
from chaos.recording import recorded
from chaos.stage import QUEUE, Stage, scenario
from testkit.waiting import eventually
from weakincentives.runtime import Worker, WorkerConfig

PLACES = 3
SENT_AT_ONCE = 5


@scenario("sqlite", "redis", "redis+asyncio", full=100, short=3)
def async_worker_kill(stage: Stage):
    """kill -9 of a worker with several async jobs at once"""
    killed_in_turn(stage, partial(_worker, stage), stage.mailbox())
    return judged(stage, "kill")


@scenario("sqlite", "redis", "redis+asyncio", full=30, short=2)
def async_worker_freeze(stage: Stage):
    """SIGSTOP of a worker with several async jobs until others have done them, then SIGCONT"""
    frozen_in_turn(stage, partial(_worker, stage), stage.mailbox())
    return judged(stage, "stop")


@scenario("redis", "redis+asyncio", full=20, short=1)
def server_kill_under_async_workers(stage: Stage):
    """kill -9 of a server with appendfsync always, which serves workers with async jobs"""
    stage.server_options = {"appendonly": "always"}
    box, load = stage.mailbox(), Load(stage, senders=2, consumers=0)
    crew = [_worker(stage) for _ in range(2)]
    for _ in range(stage.trials):
        before = len(load.successes)
        eventually(lambda before=before: len(load.successes) > before + 50, 120, "load")
        stage.server.kill()
        stage.server.restart()
    load.stop()
    eventually(lambda: box.approximate_count() == 0, 120, "an empty queue")
    for child in crew:
        child.kill()
    return stage.verdict()


@scenario("sqlite", "redis", "redis+asyncio", full=1000, short=40)
def cancelled_runs(stage: Stage):
    """run_async cancelled at any moment, once or often: jobs are finished or given back"""
    asyncio.run(_cancelled_runs(stage))
    stage.drain(within=30)
    return stage.verdict()


async def _cancelled_runs(stage: Stage) -> None:
    """Run one worker after the other; none may leave a message leased."""
    box = awaited_mailbox(stage.url, QUEUE) if stage.awaited else stage.connection.mailbox(QUEUE)
    box, rng = recorded(box, stage.log), stage.rng

    async def handle(body: Any) -> None:
        await asyncio.sleep(rng.random() * 0.02)

    for _ in range(stage.trials):
        await box.send_batch_async(["x"] * SENT_AT_ONCE)
        worker = Worker(box, handle, config=WorkerConfig(concurrency=PLACES))
        running = asyncio.create_task(worker.run_async(visibility_timeout=60, wait_time_seconds=1))
        await asyncio.sleep(rng.random() * 0.05)
        for _ in range(rng.choice((1, 2, 5))):
            running.cancel()
            await asyncio.sleep(rng.random() * 0.005)
        await asyncio.wait([running], timeout=60)
        if not running.done():
            stage.violations.append("a run has not ended 60 s after it was cancelled")
            return
        if leased := (await box.stats_async()).in_flight:
            stage.violations.append(f"{leased} messages are leased after their worker has ended")
    box.close()


def _worker(stage: Stage) -> Child:
    return stage.child(roles.serve_async, LEASE, PLACES, stage.awaited)
