"""Telemetry: what it costs when nobody listens, and with Prometheus on Redis."""

import linecache
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from benchmarks.harness import Row, compare
from benchmarks.redis import BODY, pinned
from testkit.servers import Standalone, servers_available
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.observability import PrometheusMetrics, observe
from weakincentives.runtime import Worker, WorkerConfig
from weakincentives.runtime.mailbox import InMemoryMailbox

COUNT = 1000
ROUNDS = 15


def rows() -> Iterator[Row]:
    """Measure the budget of telemetry."""
    yield Row(
        "nobody listens: bytecodes of a life in memory that ask",
        *(100 * share_of_asking(), 2.0, "%"),
        at_least=False,
        detail="lines that name a dispatcher, of send + receive(1) + ack",
    )
    servers = servers_available()
    if not servers:
        print("  no server found: nothing was measured on Redis")
        return
    with pinned(), Standalone(next(iter(servers.values()))) as server:
        for batch in (1, 100):
            yield from on_redis(server, batch)


def share_of_asking() -> float:
    """Return which part of the bytecodes of a message's life asks for a dispatcher."""
    box = InMemoryMailbox[int, None]("bench")
    counts: Counter[bool] = Counter()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
            counts["dispatcher" in line] += 1
        return trace

    def live() -> None:
        box.send(1)
        box.receive()[0].acknowledge()

    live()  # the first one makes and caches what later ones find
    before = sys.gettrace()
    # Python 3.12 looks whether any frame wants opcodes only when the trace function is set.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        live()
    finally:
        sys.settrace(before)
    return counts[True] / counts.total()


def on_redis(server: Standalone, batch: int) -> Iterator[Row]:
    from prometheus_client import CollectorRegistry

    plain = life(server, "plain", batch)
    counted = life(server, "counted", batch, PrometheusMetrics(CollectorRegistry()))
    name = "one at a time" if batch == 1 else f"{batch} at a time"
    # One by one is what was promised; in large batches a message costs too little to hide in.
    target = 0.9 if batch == 1 else 0.5
    yield compare(f"Prometheus on Redis: send + Worker, {name}", counted, plain, target, ROUNDS)


def life(
    server: Standalone, name: str, batch: int, metrics: PrometheusMetrics | None = None
) -> Callable[[], float]:
    """Return how many messages one second of a core sends and then serves in a loop."""
    box = RedisMailbox[Any, Any](name, server.client())
    worker = Worker(box, lambda body: None, config=WorkerConfig(batch=batch))
    if metrics is not None:
        observe(worker, metrics)

    def run() -> float:
        def send_and_serve() -> None:
            if batch == 1:
                for _ in range(COUNT):
                    box.send(BODY)
            else:
                for _ in range(COUNT // batch):
                    box.send_batch([BODY] * batch)
            worker.run(max_iterations=COUNT // batch, wait_time_seconds=0)

        before = cpu_seconds(server)
        send_and_serve()
        return COUNT / (cpu_seconds(server) - before)

    return run


def cpu_seconds(server: Standalone) -> float:
    """Return what this process and the server have used: a busy machine does not change that."""
    used = server.info("cpu")
    return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
