"""A worker in a process of its own.

``python -m tests.loops.child URL LEASE MAX_DELIVERIES [CONCURRENCY BATCH]``. It says on its output
what it starts. A body tells it how to behave at each delivery: ``hang`` until it is killed, ``die``
on the spot, ``kill`` itself, ``stop`` itself until it is continued, ``last`` for a moment, or
anything else, which is done at once.
"""

import os
import signal
import sys
import time

from weakincentives import connect
from weakincentives.runtime import Backoff, DLQPolicy, Failure, Worker, WorkerConfig, current_lease


def handle(body: dict[str, object]) -> dict[str, object]:
    delivery = current_lease().message.delivery_count
    behaviours = body["behaviours"]
    assert isinstance(behaviours, list)
    behaviour = behaviours[min(delivery, len(behaviours)) - 1]
    print(body["name"], delivery, behaviour, flush=True)
    if behaviour == "hang":
        time.sleep(600)
    elif behaviour == "die":
        os._exit(7)
    elif behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour == "last":
        time.sleep(0.2)
    elif behaviour == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"name": body["name"], "by": os.getpid()}


def tell(failure: Failure) -> dict[str, object]:
    return {"name": failure.body and failure.body["name"], "error": failure.text}


def main() -> None:
    url, lease, max_deliveries = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    concurrency, batch = (int(number) for number in sys.argv[4:] or ("1", "1"))
    backend = connect(url)
    worker = Worker(
        backend.mailbox("jobs"),
        handle,
        error_reply=tell,
        dlq=DLQPolicy(backend.mailbox("dead"), max_delivery_count=max_deliveries),
        config=WorkerConfig(concurrency=concurrency, batch=batch, backoff=Backoff(base=0, cap=0)),
    )
    print("ready", flush=True)
    worker.run(visibility_timeout=lease)


if __name__ == "__main__":
    main()
