"""A worker in a process of its own: ``python -m tests.loops.child URL LEASE MAX_DELIVERIES``.

It says on its output what it starts. A body tells it how to behave at each delivery:
``hang`` until it is killed, ``die`` on the spot, ``stop`` (say so, then sleep for long enough to
be stopped), or anything else, which is done at once.
"""

import os
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
    elif behaviour == "stop":
        time.sleep(0.5)
    return {"name": body["name"], "by": os.getpid()}


def tell(failure: Failure) -> dict[str, object]:
    return {"name": failure.body and failure.body["name"], "error": failure.text}


def main() -> None:
    url, lease, max_deliveries = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    backend = connect(url)
    worker = Worker(
        backend.mailbox("jobs"),
        handle,
        error_reply=tell,
        dlq=DLQPolicy(backend.mailbox("dead"), max_delivery_count=max_deliveries),
        config=WorkerConfig(backoff=Backoff(base=0, cap=0)),
    )
    print("ready", flush=True)
    worker.run(visibility_timeout=lease)


if __name__ == "__main__":
    main()
