"""SAQ: a task for each place, which takes one job at a time."""

import asyncio
from typing import Any

import saq

from benchmarks.peers import marks
from benchmarks.peers.peer import Load


async def run(ctx: Any, *, seconds: float) -> None:
    await marks.job(seconds)


class Saq:
    def send(self, url: str, load: Load) -> None:
        asyncio.run(self._send(url, load))

    async def _send(self, url: str, load: Load) -> None:
        queue = saq.Queue.from_url(url)
        for _ in range(load.count):
            await queue.enqueue("run", seconds=load.seconds)
        await queue.disconnect()

    def serve(self, url: str, load: Load) -> None:
        asyncio.run(self._serve(url, load))

    async def _serve(self, url: str, load: Load) -> None:
        await saq.Worker(
            saq.Queue.from_url(url), functions=[run], concurrency=load.concurrency
        ).start()
