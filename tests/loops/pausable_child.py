"""A worker that says what it does: ``python -m tests.loops.pausable_child URL KIND``."""

import sys
import time

from weakincentives import connect
from weakincentives.runtime import Worker


def handle(body: str) -> None:
    print("begin", body, flush=True)
    time.sleep(0.5 if body == "long" else 0)
    print("end", body, flush=True)


async def handle_async(body: str) -> None:
    handle(body)


with connect(sys.argv[1]) as backend:
    print("ready", flush=True)
    Worker(backend.mailbox("pausable"), handle_async if sys.argv[2] == "async" else handle).run()
