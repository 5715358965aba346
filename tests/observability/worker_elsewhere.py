"""A worker for another process."""

import json
from typing import Any

import weakincentives
from testkit.forked import preload
from weakincentives.observability import observe
from weakincentives.runtime import Worker, current_job

from .conftest import Recorder

preload(__name__)


def serve_one(url: str, kind: str) -> None:
    """Do one job, by a plain or an async handler, and print the spans as JSON, one a line."""
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
        worker.run(max_iterations=1, wait_time_seconds=60)
    for span in recorder.spans():
        print(json.dumps(json.loads(span.to_json(indent=None))))
