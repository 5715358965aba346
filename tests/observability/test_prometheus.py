import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from testkit.waiting import eventually
from tests.group.http import get
from weakincentives.observability import PrometheusMetrics, observe, queue_gauges, tally
from weakincentives.observability.metrics import METRICS
from weakincentives.observability.observe import ServedMailbox
from weakincentives.runtime import (
    Backoff,
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    LoopGroup,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.events import DeadLetterProcessed, JobStarted
from weakincentives.runtime.group import last_reading
from weakincentives.runtime.mailbox import MailboxFullError, events
from weakincentives.runtime.mailbox.testing import FakeClock

from .conftest import Page, samples_of

AT_ONCE = WorkerConfig(backoff=Backoff(base=0, cap=0))
SEEDS = [
    "dlq.messages.sent",
    "dlq.messages.processed",
    "dlq.messages.replayed",
    "dlq.messages.discarded",
    "dlq.queue.depth",
    "dlq.message.age_seconds",
    "dlq.processing.duration_ms",
]
"""The metrics that the specification of dead letters lists."""


def drain(loop: Any, times: int = 1) -> None:
    for _ in range(times):
        loop.run(max_iterations=1, wait_time_seconds=0)


def fail(body: Any) -> None:
    raise ValueError(body)


def test_the_life_of_a_message(page: Page) -> None:
    clock = FakeClock()
    box = InMemoryMailbox[str, Any]("orders", clock=clock, max_size=2)
    observe(box, page.metrics)
    box.send("tea")
    clock.advance(3)
    (message,) = box.receive()
    message.extend_visibility(10)
    message.nack()
    (message,) = box.receive(visibility_timeout=1)
    clock.advance(2)
    with pytest.raises(Exception, match="lease"):
        message.acknowledge()
    box.receive()[0].acknowledge()
    box.send_batch(["a", "b"])
    with pytest.raises(MailboxFullError):
        box.send_batch(["c", "d"])
    box.purge()
    samples = page.samples()
    for name, number in {
        "messages_sent_total": 3,
        "messages_received_total": 3,
        "messages_redelivered_total": 2,
        "messages_acknowledged_total": 1,
        "leases_extended_total": 1,
        "leases_lost_total": 1,
        "leases_expired_total": 1,
        "messages_purged_total": 2,
        "message_wait_seconds_count": 1,
        "message_wait_seconds_sum": 3,
    }.items():
        assert samples[f"wink_{name}", ("orders",)] == number, name
    assert samples["wink_messages_nacked_total", ("orders", "failed")] == 1
    full = "weakincentives.runtime.mailbox.errors.MailboxFullError"
    assert samples["wink_sends_failed_total", ("orders", full)] == 2


def test_jobs_and_their_times(page: Page) -> None:
    box = InMemoryMailbox[int, Any]("orders")
    worker = Worker(box, lambda n: 1 / n, config=AT_ONCE)
    observe(worker, page.metrics)
    box.send(1)
    box.send(0)
    drain(worker, 3)
    samples = page.samples()
    assert samples["wink_jobs_started_total", ("orders",)] == 3
    assert samples["wink_jobs_total", ("orders", "finished")] == 1
    assert samples["wink_jobs_total", ("orders", "retry")] == 2
    assert samples["wink_job_seconds_count", ("orders",)] == 3
    assert samples["wink_jobs_running", ("orders",)] == 0
    assert samples["wink_job_places", ("orders",)] == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_running_job_and_the_work_that_waits_are_shown(page: Page, is_async: bool) -> None:
    started, go_on = threading.Event(), threading.Event()
    box = InMemoryMailbox[str, Any]("orders")

    def handle(body: str) -> None:
        started.set()
        assert go_on.wait(60)

    async def handle_async(body: str) -> None:
        import asyncio

        await asyncio.to_thread(handle, body)

    worker = Worker(box, handle_async if is_async else handle)
    observe(worker, page.metrics)
    page.metrics._jobs["orders"].mean_seconds = 2.0
    for body in "abc":
        box.send(body)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert started.wait(60)
    samples = page.samples()
    assert samples["wink_jobs_running", ("orders",)] == 1
    assert samples["wink_queue_messages", ("orders", "in_flight")] == 1
    assert samples["wink_queue_messages", ("orders", "pending")] == 2
    assert samples["wink_queue_oldest_age_seconds", ("orders",)] > 0
    assert samples["wink_backlog_seconds", ("orders",)] == 4
    go_on.set()
    worker.shutdown(timeout=60)
    thread.join()


def test_every_metric_of_the_specification_moves_in_a_real_run(tmp_path: Path) -> None:
    """One group over a SQLite file: a worker that fails, a consumer, the health server."""
    import weakincentives

    page = Page()
    with weakincentives.connect(f"sqlite:///{tmp_path}/jobs.db") as backend:
        orders = backend.mailbox("orders")
        letters = backend.mailbox("orders-dlq", default_ttl=1000)
        group = LoopGroup(
            [
                Worker(orders, fail, dlq=DLQPolicy(letters, max_delivery_count=1), config=AT_ONCE),
                DLQConsumer(mailbox=letters, handler=lambda letter: None),
            ],
            health_port=0,
        )
        observe(group, page.metrics)
        orders.send("tea")
        runner = threading.Thread(
            target=lambda: group.run(install_signals=False, wait_time_seconds=1), daemon=True
        )
        runner.start()
        assert page("dlq_queue_depth", "orders-dlq") is not None
        processed = "dlq_messages_processed_total", "orders", "builtins.ValueError"
        eventually(lambda: page(*processed) == 1)
        assert group.shutdown(timeout=60)
        runner.join()
        # What people do with dead letters, in the same process.
        letters.send(letter("one"))
        letters.send(letter("two"))
        assert replay_dead_letters(letters, orders, limit=1) == 1
        assert letters.purge() == 1
    samples = page.samples()
    of_mailbox = ("orders-dlq",)
    assert samples["dlq_messages_sent_total", ("orders", "builtins.ValueError")] == 1
    assert samples["dlq_messages_replayed_total", of_mailbox] == 1
    assert samples["dlq_messages_discarded_total", of_mailbox] == 1
    assert samples["dlq_message_age_seconds_count", of_mailbox] == 1
    assert samples["dlq_processing_duration_ms_count", of_mailbox] == 1
    names = {name.removesuffix("_total").removesuffix("_count") for name, _ in samples}
    assert {seed.replace(".", "_") for seed in SEEDS} <= names


def letter(body: str) -> DeadLetter[str]:
    now = datetime.now(UTC)
    return DeadLetter(body, body, "orders", 1, "broken", "builtins.ValueError", now, now)


def test_dead_letters_that_the_retention_drops_are_discarded(page: Page) -> None:
    clock = FakeClock()
    letters = InMemoryMailbox[Any, None]("orders-dlq", clock=clock, default_ttl=10)
    observe(DLQConsumer(mailbox=letters, handler=print), page.metrics)
    letters.send(letter("one"))
    clock.advance(11)
    assert letters.receive() == []
    assert page("dlq_messages_discarded_total", "orders-dlq") == 1


def test_an_async_consumer_of_dead_letters_counts_too(page: Page) -> None:
    letters = InMemoryMailbox[Any, None]("orders-dlq")

    async def handle(letter: DeadLetter[Any]) -> None:
        pass

    consumer = DLQConsumer(mailbox=letters, handler=handle)
    observe(consumer, page.metrics)
    letters.send(letter("one"))
    drain(consumer)
    assert page("dlq_messages_processed_total", "orders", "builtins.ValueError") == 1


def test_the_page_of_the_health_server_has_every_metric() -> None:
    """With the registry that everybody has, as one line turns it on."""
    from prometheus_client import REGISTRY

    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, PrometheusMetrics):  # of a page of the docs
            REGISTRY.unregister(collector)
    metrics = PrometheusMetrics()
    try:
        box = InMemoryMailbox[str, Any]("orders")
        group = LoopGroup([Worker(box, str)], health_port=0)
        observe(group, metrics)
        thread = threading.Thread(target=lambda: group.run(install_signals=False), daemon=True)
        thread.start()
        address = eventually(lambda: group.health_address)
        status, text = get(address, "/metrics")
        group.shutdown(timeout=60)
        thread.join()
    finally:
        REGISTRY.unregister(metrics)  # type: ignore[arg-type]
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert status == 200
    assert "python_info" in families
    for metric in METRICS:
        family = families[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_counters_of_a_served_queue_begin_at_zero(page: Page) -> None:
    orders, letters = InMemoryMailbox[Any, Any]("orders"), InMemoryMailbox[Any, Any]("dlq")
    observe(Worker(orders, str, dlq=DLQPolicy(letters)), page.metrics)
    samples = page.samples()
    assert samples["wink_leases_lost_total", ("orders",)] == 0
    assert samples["dlq_messages_replayed_total", ("dlq",)] == 0
    assert ("dlq_messages_replayed_total", ("orders",)) not in samples


def test_loops_with_the_same_settings_add_up_their_places(page: Page) -> None:
    orders = InMemoryMailbox[Any, Any]("orders")
    config = WorkerConfig(concurrency=4)
    group = LoopGroup([Worker(orders, str, config=config), Worker(orders, str, config=config)])
    observe(group, page.metrics)
    observe(group, page.metrics)  # which changes nothing
    assert page("wink_job_places", "orders") == 8


def test_what_a_dead_letter_says_is_no_long_label(page: Page) -> None:
    dispatcher = InProcessDispatcher()
    page.metrics.subscribe_to(dispatcher)
    for _ in range(2):
        dispatcher.dispatch(
            DeadLetterProcessed("dlq", "id", "s" * 100_000, "e" * 100_000, age_seconds=1, seconds=1)
        )
    samples = page.samples()
    assert samples["dlq_messages_processed_total", ("s" * 200, "e" * 200)] == 2


def test_two_collectors_of_one_registry_are_refused() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(registry)


def test_a_queue_that_hangs_delays_nothing_but_itself(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_reading, "READ_TIMEOUT", 0.05)
    monkeypatch.setattr(queue_gauges, "MAX_AGE", 0.0)
    go_on, asked = threading.Event(), []

    class Hanging:
        name = "hanging"

        def stats(self) -> None:
            asked.append(1)
            go_on.wait(120)

    page.metrics.watch(ServedMailbox(Hanging(), 1, False))
    page.metrics.watch(ServedMailbox(InMemoryMailbox[Any, Any]("orders"), 1, False))
    for _ in range(3):
        samples = eventually(lambda: (s := page.samples())["wink_queue_up", ("orders",)] and s)
        assert samples["wink_queue_up", ("hanging",)] == 0
        assert ("wink_queue_messages", ("hanging", "pending")) not in samples
    assert asked == [1]  # one thread, however often somebody looks
    go_on.set()


def test_counts_are_not_asked_for_at_every_look(page: Page) -> None:
    asked = []

    class Counted(InMemoryMailbox[Any, Any]):
        def _stats_from_thread(self) -> Any:
            asked.append(1)
            return super()._stats_from_thread()

    page.metrics.watch(ServedMailbox(Counted("orders"), 1, False))
    for _ in range(3):
        page.samples()
    assert asked == [1]


def test_counts_that_are_old_are_not_shown(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    box = InMemoryMailbox[Any, Any]("orders")
    page.metrics.watch(ServedMailbox(box, 1, False))
    eventually(lambda: page("wink_queue_messages", "orders", "pending") == 0)

    def broken() -> Any:
        raise OSError("no server")

    reading = page.metrics._queues._readings["orders"]
    monkeypatch.setattr(reading, "_ask", broken)
    monkeypatch.setattr(queue_gauges, "MAX_AGE", 0.0)
    eventually(lambda: page("wink_queue_up", "orders") == 0)
    assert page("wink_queue_messages", "orders", "pending") == 0  # of a moment ago
    monkeypatch.setattr(queue_gauges, "STALE_AFTER", 0.0)
    assert page("wink_queue_messages", "orders", "pending") is None


def test_the_queue_of_an_asyncio_client_is_counted(page: Page, redis_url: str) -> None:
    redis = pytest.importorskip("redis.asyncio")
    from weakincentives.contrib.mailbox import RedisMailbox

    box = RedisMailbox[Any, Any]("counted", redis.Redis.from_url(redis_url))
    page.metrics.watch(ServedMailbox(box, 1, False))
    eventually(lambda: page("wink_queue_messages", "counted", "pending") == 0)
    box.close()


def test_the_number_of_series_is_bounded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_SERIES", 2)
    dispatcher = InProcessDispatcher()
    page.metrics.subscribe_to(dispatcher)
    for number in range(5):
        dispatcher.dispatch(events.MessageSent(f"replies-{number}", "id"))
        dispatcher.dispatch(events.MessageReceived(f"replies-{number}", "id", 1, 0.5))
    samples = page.samples()
    assert samples["wink_messages_sent_total", ("replies-1",)] == 1
    assert samples["wink_messages_sent_total", ("(other)",)] == 3
    assert samples["wink_message_wait_seconds_count", ("(other)",)] == 3
    assert ("wink_messages_sent_total", ("replies-2",)) not in samples


def test_no_count_is_lost_between_threads(page: Page) -> None:
    dispatcher = InProcessDispatcher()
    page.metrics.subscribe_to(dispatcher)
    page.metrics.subscribe_to(dispatcher)  # which changes nothing
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait()
        for _ in range(2000):
            dispatcher.dispatch(events.MessageReceived("orders", "id", 1, 0.5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert page("wink_messages_received_total", "orders") == 8000
    assert page("wink_message_wait_seconds_sum", "orders") == 4000


def test_a_histogram_counts_up_to_each_bound(page: Page) -> None:
    dispatcher = InProcessDispatcher()
    page.metrics.subscribe_to(dispatcher)
    for waited in (0.001, 0.002, 7.0, 1e9):
        dispatcher.dispatch(events.MessageReceived("orders", "id", 1, waited))
    text = generate_latest(page.registry).decode()
    found = dict(re.findall(r'wait_seconds_bucket{le="(.+?)",mailbox="orders"} (\S+)', text))
    assert {bound: float(found[bound]) for bound in ("0.001", "0.005", "5.0", "10.0", "+Inf")} == {
        "0.001": 1,
        "0.005": 2,
        "5.0": 2,
        "10.0": 3,
        "+Inf": 4,
    }
    assert samples_of(text)["wink_message_wait_seconds_count", ("orders",)] == 4


def test_a_forked_child_counts_from_the_start(page: Page) -> None:
    dispatcher = InProcessDispatcher()
    page.metrics.subscribe_to(dispatcher)
    dispatcher.dispatch(events.MessageSent("orders", "id"))
    dispatcher.dispatch(JobStarted("orders", "id", 1))
    page.metrics._tally._begin_anew()
    page.metrics._begin_anew()
    samples = page.samples()
    assert ("wink_messages_sent_total", ("orders",)) not in samples
    assert ("wink_jobs_running", ("orders",)) not in samples


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_a_count_is_under_way_does_not_hang(page: Page) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with page.metrics._tally.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        page.metrics._tally.count("wink_messages_sent", "orders")
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_event_of_loops_and_mailboxes_is_counted(page: Page) -> None:
    """But for the bases, and for what comes before it happens."""
    from weakincentives.runtime import events as of_loops

    dispatcher = InProcessDispatcher()
    page.metrics.subscribe_to(dispatcher)
    kinds = [getattr(module, name) for module in (events, of_loops) for name in module.__all__]
    for kind in kinds:
        is_event = isinstance(kind, type) and issubclass(
            kind, events.MailboxEvent | of_loops.LoopEvent
        )
        if is_event and kind not in (events.MailboxEvent, of_loops.LoopEvent):
            assert dispatcher.has_subscribers(kind), kind
