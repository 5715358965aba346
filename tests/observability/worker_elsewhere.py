"""A worker in another process: ``python -m tests.observability.worker_elsewhere URL plain|async``.

It ends after the jobs that its input names, and prints its spans as JSON, one a line.
"""

import json
import sys
from typing import Any

import weakincentives
from weakincentives.observability import observe
from weakincentives.runtime import Worker, current_job

from .conftest import Recorder


def main(url: str, kind: str) -> None:
    recorder = Recorder()
    with weakincentives.connect(url) as backend:

        def handle(body: Any) -> str:
            with recorder.tracer.start_as_current_span("inside"):
                return f"{body} of {current_job().id}"

        async def handle_async(body: Any) -> str:
            with recorder.tracer.start_as_current_span("inside"):
                return f"{body} async"

        orders = backend.mailbox("orders")
        worker = Worker(orders, handle_async if kind == "async" else handle)
        observe(backend, recorder.telemetry)
        observe(worker, recorder.telemetry)
        for _ in sys.stdin.readline().split():
            worker.run(max_iterations=1, wait_time_seconds=60)
    for span in recorder.spans():
        print(json.dumps(json.loads(span.to_json(indent=None))))


if __name__ == "__main__":
    main(*sys.argv[1:])
