"""A worker in a process of its own.

The kind of its handler is ``plain`` or ``async``. It says on its output what it starts. A body
tells it how to behave at each delivery: ``hang`` until it is killed, ``die`` on the spot, ``kill``
itself, ``stop`` itself until it is continued, ``last`` for a moment, or anything else, which is
done at once.
"""

import asyncio
import os
import signal
import time

from testkit.forked import preload
from weakincentives import connect
from weakincentives.runtime import Backoff, DLQPolicy, Failure, Worker, WorkerConfig, current_lease

preload(__name__)

SECONDS = {"hang": 600.0, "last": 0.2}


def handle(body: dict[str, object]) -> dict[str, object]:
    time.sleep(SECONDS.get(behave(body), 0.0))
    return {"name": body["name"], "by": os.getpid()}


async def handle_async(body: dict[str, object]) -> dict[str, object]:
    await asyncio.sleep(SECONDS.get(behave(body), 0.0))
    return {"name": body["name"], "by": os.getpid()}


def behave(body: dict[str, object]) -> str:
    """Say what this delivery is to do, do it unless it takes time, and return it."""
    delivery = current_lease().message.delivery_count
    behaviours = body["behaviours"]
    assert isinstance(behaviours, list)
    behaviour: str = behaviours[min(delivery, len(behaviours)) - 1]
    print(body["name"], delivery, behaviour, flush=True)
    if behaviour == "die":
        os._exit(7)
    elif behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    return behaviour


def tell(failure: Failure) -> dict[str, object]:
    return {"name": failure.body and failure.body["name"], "error": failure.text}


def serve(
    kind: str, url: str, lease: float, max_deliveries: int, concurrency: int = 1, batch: int = 1
) -> None:
    """Serve until this process is ended."""
    backend = connect(url)
    worker = Worker(
        backend.mailbox("jobs"),
        handle_async if kind == "async" else handle,
        error_reply=tell,
        dlq=DLQPolicy(backend.mailbox("dead"), max_delivery_count=max_deliveries),
        config=WorkerConfig(concurrency=concurrency, batch=batch, backoff=Backoff(base=0, cap=0)),
    )
    print("ready", flush=True)
    worker.run(visibility_timeout=lease)
