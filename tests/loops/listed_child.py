"""A worker that lists itself often: ``python -m tests.loops.listed_child URL KIND``.

It prints a line when its job has begun, and ends in order when its input does.
"""

import asyncio
import sys
import threading

from weakincentives import connect
from weakincentives.runtime import Worker, WorkerConfig
from weakincentives.runtime.worker import announcer

announcer.BEAT_SECONDS = 0.2
ended = threading.Event()


def handle(body: str) -> None:
    print(body, flush=True)
    ended.wait()


async def handle_async(body: str) -> None:
    print(body, flush=True)
    while not ended.is_set():
        await asyncio.sleep(0.01)


def main() -> None:
    url, kind = sys.argv[1:]
    with connect(url) as backend:
        worker = Worker(
            backend.mailbox("listed-jobs"),
            handle_async if kind == "async" else handle,
            config=WorkerConfig(concurrency=3),
        )
        serving = threading.Thread(target=worker.run)
        serving.start()
        sys.stdin.read()
        ended.set()
        assert worker.shutdown()
        serving.join()


if __name__ == "__main__":
    main()
