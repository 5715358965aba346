import asyncio
import json
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

import weakincentives
from testkit.forked import ForkedProcess
from weakincentives.observability import observe, span_table
from weakincentives.observability import opentelemetry as module
from weakincentives.runtime import (
    Backoff,
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    LoopGroup,
    RetryAfter,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.mailbox import MailboxFullError

from .conftest import Recorder
from .test_prometheus import drain, fail
from .worker_elsewhere import serve_one

AT_ONCE = WorkerConfig(backoff=Backoff(base=0, cap=0))
Parent = Callable[[ReadableSpan], int | None]


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
    else:
        url = request.getfixturevalue("redis_url")
        yield url
        with weakincentives.connect(url) as backend:
            for queue in ("orders", "answers"):
                backend.mailbox(queue).purge()


def spans_of(worker: ForkedProcess) -> list[dict[str, Any]]:
    """Return what a worker in another process has recorded, once it has ended."""
    with worker.output as output:
        spans = [json.loads(line) for line in output]
    assert worker.wait() == 0
    return spans


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("route", ["reply_to", "channel"])
def test_one_trace_joins_client_worker_and_reply_across_processes(
    url: str, kind: str, route: str, recorder: Recorder
) -> None:
    with weakincentives.connect(url) as backend:
        observe(backend, recorder.telemetry)
        orders, answers = backend.mailbox("orders"), backend.mailbox("answers")
        with recorder.tracer.start_as_current_span("client") as client:
            if route == "channel":
                reply = orders.send_expecting_reply("tea")
                spans = spans_of(ForkedProcess(serve_one, url, kind))
                assert "tea" in reply.wait(timeout=60)
            else:
                orders.send("tea", reply_to=answers)
                spans = spans_of(ForkedProcess(serve_one, url, kind))
                (answer,) = answers.receive(wait_time_seconds=60)
                assert "tea" in answer.body
                answer.acknowledge()
    sent = recorder.one("send orders")
    there = {span["name"]: span for span in spans}
    processed = there["process orders"]
    replied = there["send answers" if route == "reply_to" else "reply orders"]

    trace = f"0x{trace_of(sent):032x}"
    assert {span["context"]["trace_id"] for span in there.values()} == {trace}
    assert client.get_span_context().trace_id == trace_of(sent)
    assert processed["parent_id"] == f"0x{id_of(sent):016x}"
    assert replied["parent_id"] == processed["context"]["span_id"]
    assert there["inside"]["parent_id"] == processed["context"]["span_id"]
    if route == "reply_to":
        # The client's receive is a part of its own span, and linked to the worker's send.
        received = recorder.one("receive answers")
        assert trace_of(received) == trace_of(sent)
        (link,) = received.links
        assert f"0x{link.context.span_id:016x}" == replied["context"]["span_id"]


def test_what_the_spans_of_a_message_say(recorder: Recorder, parent_of: Parent) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    worker = Worker(box, str)
    observe(worker, recorder.telemetry)
    id = box.send("tea")
    drain(worker)
    sent, received, processed = map(
        recorder.one, ("send orders", "receive orders", "process orders")
    )
    common = {
        "messaging.system": "weakincentives",
        "messaging.destination.name": "orders",
        "messaging.message.id": id,
    }
    assert sent.kind is SpanKind.PRODUCER
    assert dict(sent.attributes or {}) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    facts = dict(received.attributes or {})
    assert facts.pop("weakincentives.wait_seconds") >= 0  # type: ignore[operator]
    assert facts == {
        **common,
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "weakincentives.delivery_count": 1,
    }
    assert processed.kind is SpanKind.CONSUMER
    assert dict(processed.attributes or {}) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "weakincentives.delivery_count": 1,
        "weakincentives.outcome": "finished",
    }
    assert parent_of(sent) is None
    assert parent_of(received) == parent_of(processed) == id_of(sent)


def test_a_failed_job_is_an_error_with_its_reference(recorder: Recorder) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    worker = Worker(box, fail, config=AT_ONCE)
    observe(worker, recorder.telemetry)
    box.send("tea")
    drain(worker)
    failed = recorder.one("process orders")
    assert failed.status.status_code is StatusCode.ERROR
    facts = failed.attributes or {}
    assert facts["error.type"] == "builtins.ValueError"
    assert facts["weakincentives.outcome"] == "retry"
    assert facts["weakincentives.reference"]
    # An error's text may hold anything, so no span has it.
    assert "tea" not in failed.to_json()


def test_every_delivery_is_a_span_of_the_same_trace(recorder: Recorder) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    tries = []

    def handle(body: str) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RetryAfter(0)
        if len(tries) == 2:
            raise ValueError

    worker = Worker(box, handle, config=AT_ONCE)
    observe(worker, recorder.telemetry)
    box.send("tea")
    drain(worker, 3)
    spans = recorder.spans("process orders")
    outcomes = [(span.attributes or {})["weakincentives.outcome"] for span in spans]
    assert outcomes == ["put_off", "retry", "finished"]
    assert len({trace_of(span) for span in recorder.spans()}) == 1


def test_a_batch_is_one_span(recorder: Recorder, parent_of: Parent) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    worker = Worker(box, str, config=WorkerConfig(batch=3))
    observe(worker, recorder.telemetry)
    box.send_batch(["a", "b", "c"])
    drain(worker)
    sent = recorder.one("send orders")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert [parent_of(span) for span in recorder.spans("process orders")] == [id_of(sent)] * 3


def test_what_a_handler_sends_belongs_to_its_job(recorder: Recorder, parent_of: Parent) -> None:
    box, next_box = InMemoryMailbox[str, Any]("orders"), InMemoryMailbox[str, Any]("next")
    worker = Worker(box, lambda body: next_box.send(body) and None)
    observe(worker, recorder.telemetry)
    observe(next_box, recorder.telemetry)
    box.send("a")
    box.send("b")
    drain(worker, 2)
    first, second = recorder.spans("process orders")
    assert [parent_of(span) for span in recorder.spans("send next")] == [
        id_of(first),
        id_of(second),
    ]
    assert trace_of(first) != trace_of(second)


def test_async_jobs_do_not_mix_their_contexts(recorder: Recorder, parent_of: Parent) -> None:
    box, next_box = InMemoryMailbox[str, Any]("orders"), InMemoryMailbox[str, Any]("next")
    together = 5
    arrived = asyncio.Barrier(together)

    async def handle(body: str) -> None:
        await arrived.wait()
        await next_box.send_async(body, message_id=f"from-{body}")

    worker = Worker(box, handle, config=WorkerConfig(concurrency=together))
    observe(LoopGroup([worker]), recorder.telemetry)
    observe(next_box, recorder.telemetry)
    ids = [box.send(str(number)) for number in range(together)]
    drain(worker)
    jobs = {
        (span.attributes or {})["messaging.message.id"]: id_of(span)
        for span in recorder.spans("process orders")
    }
    for span in recorder.spans("send next"):
        number = str((span.attributes or {})["messaging.message.id"]).removeprefix("from-")
        assert parent_of(span) == jobs[ids[int(number)]]
    assert len(jobs) == len(recorder.spans("send next")) == together


@pytest.mark.parametrize("is_async", [False, True])
def test_a_dead_letter_and_its_handling_belong_to_the_trace(
    recorder: Recorder, parent_of: Parent, is_async: bool
) -> None:
    orders, letters = InMemoryMailbox[str, Any]("orders"), InMemoryMailbox[Any, None]("dlq")

    async def fail_async(body: str) -> None:
        raise ValueError

    seen = []
    worker = Worker(
        orders, fail_async if is_async else fail, dlq=DLQPolicy(letters, max_delivery_count=1)
    )
    consumer = DLQConsumer(mailbox=letters, handler=seen.append)
    observe(LoopGroup([worker, consumer]), recorder.telemetry)
    orders.send("tea")
    drain(worker)
    drain(consumer)
    assert len({trace_of(span) for span in recorder.spans()}) == 1
    assert parent_of(recorder.one("send dlq")) == id_of(recorder.one("process orders"))
    assert parent_of(recorder.one("process dlq")) == id_of(recorder.one("send dlq"))
    assert seen[0].trace_id == f"{trace_of(recorder.one('send orders')):032x}"


def test_a_replay_is_a_trace_of_its_own_with_a_link_to_the_first(
    recorder: Recorder, tmp_path: Path
) -> None:
    with weakincentives.connect(f"sqlite:///{tmp_path}/jobs.db") as backend:
        observe(backend, recorder.telemetry)
        orders, letters = backend.mailbox("orders"), backend.mailbox("dlq")
        worker = Worker(orders, fail, dlq=DLQPolicy(letters, max_delivery_count=1))
        orders.send("tea", attributes={"own": "1", "tracestate": "old=1"})
        drain(worker)
        assert replay_dead_letters(letters, orders) == 1
        (message,) = orders.receive()
    first, again = recorder.spans("send orders")
    assert trace_of(first) != trace_of(again)
    (link,) = again.links
    assert (link.context.trace_id, link.context.span_id) == (trace_of(first), id_of(first))
    assert message.attributes["own"] == "1"
    assert f"{trace_of(again):032x}" in message.attributes["traceparent"]
    assert "tracestate" not in message.attributes


def test_responses_belong_to_the_job(recorder: Recorder, parent_of: Parent) -> None:
    orders, results = InMemoryMailbox[str, Any]("orders"), InMemoryMailbox[Any, None]("results")
    worker = Worker(orders, str.upper, responses=results)
    observe(worker, recorder.telemetry)
    orders.send("tea")
    drain(worker)
    assert parent_of(recorder.one("send results")) == id_of(recorder.one("process orders"))


def test_a_reply_without_a_loop_belongs_to_the_trace_of_its_message(recorder: Recorder) -> None:
    orders, answers = InMemoryMailbox[str, str]("orders"), InMemoryMailbox[str, None]("answers")
    for box in (orders, answers):
        observe(box, recorder.telemetry)
    orders.send("tea", reply_to=answers)
    (message,) = orders.receive()
    message.reply("yes")
    assert trace_of(recorder.one("send answers")) == trace_of(recorder.one("send orders"))


def test_a_send_that_fails_is_an_error(recorder: Recorder) -> None:
    box = InMemoryMailbox[Any, Any]("orders", max_size=1)
    observe(box, recorder.telemetry)
    box.send("tea")
    with pytest.raises(MailboxFullError):
        box.send("more")
    _, failed = recorder.spans("send orders")
    assert failed.status.status_code is StatusCode.ERROR
    full = "weakincentives.runtime.mailbox.errors.MailboxFullError"
    assert (failed.attributes or {})["error.type"] == full


@pytest.mark.parametrize("hostile", ["", "00-zz-1-1", "x" * 10_000, "00-" + "0" * 32 + "-1-01"])
def test_what_a_sender_writes_into_the_context_breaks_nothing(
    recorder: Recorder, hostile: str
) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    box.send("tea", attributes={"traceparent": hostile, "tracestate": hostile})
    seen: list[str] = []
    worker = Worker(box, seen.append)
    observe(worker, recorder.telemetry)
    drain(worker)
    assert seen == ["tea"]
    assert recorder.one("process orders").parent is None


def test_metrics_by_the_conventions(recorder: Recorder) -> None:
    box = InMemoryMailbox[str, Any]("orders", max_size=2)
    worker = Worker(box, fail, config=AT_ONCE)
    observe(worker, recorder.telemetry)
    box.send("a")
    box.send("b")
    with pytest.raises(MailboxFullError):
        box.send("c")
    drain(worker)
    points = recorder.points()
    ok, refused = points["messaging.client.sent.messages"]
    assert (ok.value, refused.value) == (2, 1)
    assert "MailboxFullError" in refused.attributes["error.type"]
    assert [point.value for point in points["messaging.client.consumed.messages"]] == [1]
    (took,) = points["messaging.process.duration"]
    assert took.count == 1
    assert took.attributes == {
        "messaging.system": "weakincentives",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "error.type": "builtins.ValueError",
    }
    assert sum(point.count for point in points["messaging.client.operation.duration"]) == 3


def test_what_is_remembered_is_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_table, "MOST_SPANS", 2)
    monkeypatch.setattr(module, "MOST_DESTINATIONS", 2)
    telemetry = recorder.telemetry
    from weakincentives.runtime.events import JobStarted

    for number in range(5):
        # In a copy, as a loop does: it becomes the current span.
        copy_context().run(telemetry._job_started, JobStarted(f"m{number}", "id", 1))
        telemetry._sent_messages.add(1, telemetry._of_metric(f"m{number}", "send"))
    assert len(telemetry._jobs._open) == len(telemetry._jobs._contexts) == 2
    assert [span.name for span in recorder.spans()] == [f"process m{n}" for n in range(3)]
    names = [
        point.attributes["messaging.destination.name"]
        for point in recorder.points()["messaging.client.sent.messages"]
    ]
    assert sorted(names) == ["(other)", "m0", "m1"]


def test_nothing_is_added_to_messages_where_it_is_off() -> None:
    box = InMemoryMailbox[str, Any]("orders")
    box.send("tea")
    assert box.receive()[0].attributes == {}
