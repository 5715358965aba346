"""This library, under the same conditions as its peers."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from benchmarks.peers import marks
from benchmarks.peers.peer import Load
from weakincentives import connect
from weakincentives.runtime import Worker, WorkerConfig

BATCH = 1000


class Ours:
    def send(self, url: str, load: Load) -> None:
        with connect(url) as backend:
            self._send(backend.mailbox("jobs"), load)

    def _send(self, box: Any, load: Load) -> None:
        for begin in range(0, load.count, BATCH):
            box.send_batch([load.seconds] * min(BATCH, load.count - begin))

    def serve(self, url: str, load: Load) -> None:
        asyncio.run(self._serve(url, load))

    async def _serve(self, url: str, load: Load) -> None:
        steps: Counter[str] = Counter()
        left, all_ended = load.count, asyncio.Event()

        async def handle(seconds: float) -> None:
            nonlocal left
            await marks.job(seconds)
            left -= 1
            if not left:
                all_ended.set()

        with connect(url) as backend:
            box = backend.mailbox("jobs")
            if url.startswith("memory:"):
                self._send(box, load)
            count_steps(box.store, steps)
            worker = Worker(
                box,
                handle,
                config=WorkerConfig(concurrency=load.concurrency),
            )
            running = asyncio.create_task(worker.run_async(visibility_timeout=load.lease))
            await all_ended.wait()
            while (await box.stats_async()).total:
                await asyncio.sleep(0.005)
            marks.mark(marks.SETTLED)
            counters = asdict(worker.lease_extender.counters)
            print(json.dumps({"steps": steps, "leases": counters}), flush=True)
            await running


def count_steps(store: Any, steps: Counter[str]) -> None:
    """Count the steps of a store by name, apart from those of idle consumers."""

    def counted(call: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
        async def step(*arguments: Any, **options: Any) -> Any:
            steps[name] += 1
            return await call(*arguments, **options)

        return step

    for name in ("lease", "acknowledge", "release", "extend"):
        setattr(store, name, counted(getattr(store, name), name))
