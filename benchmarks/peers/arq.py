"""arq: jobs in a sorted set, each with a key that marks it as being worked on."""

import asyncio
from typing import Any

import arq
from arq.connections import RedisSettings

from benchmarks.peers import marks
from benchmarks.peers.peer import Load


async def run(ctx: dict[Any, Any], seconds: float) -> None:
    await marks.job(seconds)


class Arq:
    def send(self, url: str, load: Load) -> None:
        asyncio.run(self._send(url, load))

    async def _send(self, url: str, load: Load) -> None:
        pool = await arq.create_pool(RedisSettings.from_dsn(url))
        for _ in range(load.count):
            await pool.enqueue_job("run", load.seconds)

    def serve(self, url: str, load: Load) -> None:
        asyncio.run(self._serve(url, load))

    async def _serve(self, url: str, load: Load) -> None:
        worker = arq.Worker(
            [run],
            redis_settings=RedisSettings.from_dsn(url),
            max_jobs=load.concurrency,
            keep_result=0,
            log_results=False,
        )
        await worker.main()
