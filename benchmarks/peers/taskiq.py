"""taskiq, with the broker that acknowledges: a stream of Redis with a consumer group."""

import asyncio

import taskiq_redis
from taskiq.api import run_receiver_task

from benchmarks.peers import marks
from benchmarks.peers.peer import Load


class Taskiq:
    def _broker(self, url: str) -> taskiq_redis.RedisStreamBroker:
        broker = taskiq_redis.RedisStreamBroker(url, consumer_id="0")
        broker.register_task(marks.job, task_name="job")
        return broker

    def send(self, url: str, load: Load) -> None:
        asyncio.run(self._send(url, load))

    async def _send(self, url: str, load: Load) -> None:
        broker = self._broker(url)
        await broker.startup()
        job = broker.find_task("job")
        assert job is not None
        for _ in range(load.count):
            await job.kiq(load.seconds)
        await broker.shutdown()

    def serve(self, url: str, load: Load) -> None:
        asyncio.run(self._serve(url, load))

    async def _serve(self, url: str, load: Load) -> None:
        await run_receiver_task(
            self._broker(url), max_async_tasks=load.concurrency, run_startup=True
        )
