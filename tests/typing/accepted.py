"""What users may write: a strict type checker accepts every line of it. Read, never run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, assert_type

import weakincentives
from weakincentives import Backend, connect
from weakincentives.clock import Clock, SystemClock
from weakincentives.contrib.mailbox import RedisMailbox, SQLiteMailbox, SQSMailbox
from weakincentives.contrib.mailbox.redis.backend import RedisBackend
from weakincentives.contrib.mailbox.sqlite.backend import SQLiteBackend
from weakincentives.contrib.mailbox.sqs.backend import SQSBackend
from weakincentives.contrib.mailbox.testing import FakeAsyncJob, make_async_job, make_job
from weakincentives.dataclasses import FrozenDataclass
from weakincentives.dispatch import Dispatcher, InProcessDispatcher
from weakincentives.evals import (
    Dataset,
    EvalLoop,
    EvalReport,
    EvalRequest,
    EvalResult,
    Evaluator,
    collect_results,
    exact_match,
    submit_dataset,
)
from weakincentives.runtime import (
    AsyncJob,
    Deadline,
    Job,
    MainLoop,
    RetryAfter,
    Worker,
    WorkerConfig,
    current_async_job,
    current_job,
)
from weakincentives.runtime.mailbox import (
    Capabilities,
    CollectingMailbox,
    CompositeResolver,
    FakeMailbox,
    ImmediateReply,
    InMemoryMailbox,
    InMemoryMailboxFactory,
    InMemoryReplyStore,
    Limits,
    Mailbox,
    MailboxFactory,
    MailboxResolver,
    MailboxStats,
    Message,
    NullMailbox,
    Peeked,
    RegistryResolver,
    Reply,
    ReplyChannel,
    ReplyEntry,
    ReplyStore,
)
from weakincentives.runtime.mailbox.envelope import JsonSealer, Sealer
from weakincentives.runtime.mailbox.events import MessageSent
from weakincentives.runtime.mailbox.mailbox import MailboxOptions, StoreMailbox
from weakincentives.runtime.mailbox.memory.backend import MemoryBackend
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leased,
    Leases,
    Listener,
    Outgoing,
    QueueStats,
    Seen,
    Store,
)
from weakincentives.serde import Codec

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class Receipt:
    total: int


def declarations() -> None:
    both: Mailbox[Order, Receipt] = InMemoryMailbox(name="orders")
    one: Mailbox[Order] = InMemoryMailbox(name="orders")
    none: Mailbox[Order, None] = InMemoryMailbox("orders")
    assert_type(InMemoryMailbox[Order, Receipt]("x"), InMemoryMailbox[Order, Receipt])
    assert_type(InMemoryMailbox[Order]("x"), InMemoryMailbox[Order, None])
    told: InMemoryMailbox[Order, Receipt] = InMemoryMailbox(
        "x", body_type=Order, reply_type=Receipt, max_size=5, default_ttl=60, serialize=True
    )
    doubles: list[Mailbox[Order, Receipt]] = [
        both,
        told,
        NullMailbox(),
        CollectingMailbox(),
        FakeMailbox("fake", max_size=3),
        CollectingMailbox[Order, Receipt](),
    ]
    assert_type(CollectingMailbox[Order]().sent, list[Order])
    del one, none, doubles


def produce(orders: Mailbox[Order, Receipt], receipts: Mailbox[Receipt, None]) -> None:
    assert_type(orders.send(Order("tea")), str)
    orders.send(
        Order("tea"),
        delay_seconds=1.5,
        reply_to=receipts,
        attributes={"trace": "7"},
        message_id="order-7",
    )
    orders.send(Order("tea"), reply_to=CollectingMailbox())
    assert_type(orders.send_batch([Order("tea")], delay_seconds=3, reply_to=receipts), list[str])
    reply = orders.send_expecting_reply(Order("tea"), reply_timeout=60)
    assert_type(reply, Reply[Receipt])
    assert_type(reply.wait(timeout=5).total, int)
    assert_type(reply.poll(), Receipt | None)
    fake: Reply[Receipt] = ImmediateReply(Receipt(1))
    assert_type((fake.cancel(), fake.is_ready(), fake.is_cancelled(), fake.id)[3], str)


def consume(orders: Mailbox[Order, Receipt]) -> None:
    for message in orders.receive(max_messages=10, visibility_timeout=60, wait_time_seconds=20):
        assert_type(message, Message[Order, Receipt])
        assert_type(message.body, Order)
        assert_type(message.reply_to, Mailbox[Receipt, None] | None)
        assert_type(message.reply_channel, ReplyChannel[Receipt] | None)
        assert_type(message.attributes, Mapping[str, str])
        assert_type(message.reply(Receipt(3)), str)
        assert_type(message.nack(visibility_timeout=5), bool)
        assert_type(message.extend_visibility(60), bool)
        assert_type(message.acknowledge(), bool)
        assert_type(message.delivery_count + message.nack_count, int)
        assert_type(message.attempts + message.put_off_count, int)
    assert_type(orders.acknowledge_batch(orders.receive()), list[bool])
    assert_type(orders.stats(), MailboxStats)
    assert_type(orders.peek(5), list[Peeked[Order]])
    assert_type(orders.peek()[0].body, Order)
    assert_type(orders.purge() + orders.approximate_count(), int)
    assert_type(orders.limits, Limits)
    with orders as same:
        same.send(Order("tea"))


async def consume_async(orders: Mailbox[Order, Receipt]) -> None:
    assert_type(await orders.send_async(Order("tea")), str)
    reply = await orders.send_expecting_reply_async(Order("tea"))
    for message in await orders.receive_async(wait_time_seconds=20):
        assert_type(message.body, Order)
        await message.reply_async(Receipt(1))
        assert_type(await message.acknowledge_async(), bool)
    assert_type(await reply.wait_async(), Receipt)
    for one in await orders.send_batch_expecting_replies_async([Order("tea")]):
        assert_type(await one.wait_async(), Receipt)
    assert_type(await orders.stats_async(), MailboxStats)


def by_url(url: str) -> None:
    backend: Backend = connect(url)
    with weakincentives.connect("memory://") as place:
        orders: Mailbox[Order, Receipt] = place.mailbox("orders", body_type=Order)
        produce(orders, place.mailbox("receipts"))
        assert_type(place.queues(), list[str])
        factory: MailboxFactory = place
        resolver: MailboxResolver = CompositeResolver(
            registry={"receipts": place.mailbox("receipts")}, factory=factory, allow=["client-*"]
        )
        place.mailbox("other", reply_resolver=resolver)
    backend.close()


def by_declared_types(place: Backend) -> None:
    assert_type(place.mailbox("orders", body_type=Order), Mailbox[Order, Any])
    assert_type(place.mailbox("orders", reply_type=Receipt), Mailbox[Any, Receipt])
    assert_type(place.mailbox("orders"), Mailbox[Any, Any])
    assert_type(place.mailbox("orders", body_type=list[Order]), Mailbox[list[Order], Any])
    orders = place.mailbox("orders", body_type=Order, reply_type=Receipt, max_size=5)
    assert_type(orders, Mailbox[Order, Receipt])
    assert_type(orders.receive()[0].body.item, str)
    assert_type(orders.send_expecting_reply(Order("tea")).wait().total, int)
    optional: Mailbox[Order | None, Receipt] = place.mailbox("orders", body_type=Order | None)
    either: Mailbox[Order | Receipt, None] = place.mailbox("both", body_type=Order | Receipt)
    requests: Mailbox[Result[Order], Receipt] = place.mailbox("results", body_type=Result[Order])
    del optional, either, requests


def by_backend(
    memory: MemoryBackend, sqlite: SQLiteBackend, redis: RedisBackend, sqs: SQSBackend
) -> None:
    for place in (memory, sqlite, redis, sqs):
        as_protocol: Backend = place
        by_declared_types(as_protocol)
        orders = place.mailbox("orders", body_type=Order, reply_type=Receipt)
        assert_type(orders, StoreMailbox[Order, Receipt])
    assert_type(memory.mailbox("orders"), InMemoryMailbox[Any, Any])
    assert_type(sqlite.mailbox("orders"), SQLiteMailbox[Any, Any])
    assert_type(redis.mailbox("orders"), RedisMailbox[Any, Any])
    assert_type(sqs.mailbox("orders"), SQSMailbox[Any, Any])


def fill(order: Order) -> Receipt:
    return Receipt(len(order.item))


async def fill_async(order: Order) -> Receipt:
    return Receipt(len(order.item))


def work(place: Backend) -> None:
    orders = place.mailbox("orders", body_type=Order, reply_type=Receipt)
    assert_type(Worker(orders, fill), Worker[Order, Receipt])
    Worker(orders, fill_async).run(max_iterations=1)
    Worker(place.mailbox("orders", body_type=Order), fill)
    Worker(place.mailbox("orders"), fill)


def resolvers(receipts: InMemoryMailbox[Receipt, None]) -> list[MailboxResolver]:
    return [
        RegistryResolver({"receipts": receipts}),
        CompositeResolver(registry={}, factory=InMemoryMailboxFactory()),
    ]


def replies() -> None:
    store: ReplyStore[Receipt] = InMemoryReplyStore()
    entry = store.get("id")
    assert_type(entry, ReplyEntry[Receipt] | None)
    if entry is not None:
        assert_type(entry.value, Receipt | None)
    InMemoryMailbox[Order, Receipt]("x", reply_store=store)


def listens(dispatcher: Dispatcher) -> None:
    def on_sent(event: MessageSent) -> None:
        assert_type(event.message_id, str)

    dispatcher.subscribe(MessageSent, on_sent)
    InMemoryMailbox[Order]("x", dispatcher=InProcessDispatcher(), clock=SystemClock())


@FrozenDataclass()
class Result(Generic[T]):
    value: T
    note: str = ""


assert_type(Result[int](7, note="x").value, int)


def generic_helper(box: Mailbox[T, R], body: T, use: Callable[[R], None]) -> None:
    use(box.send_expecting_reply(body).wait())


class ThirdPartyReplies:
    """A reply store that inherits nothing of ours."""

    def create(self, id: str, *, ttl: float) -> bool:
        return True

    def resolve(self, id: str, value: Receipt) -> bool:
        return True

    def cancel(self, id: str) -> bool:
        return True

    def get(self, id: str) -> ReplyEntry[Receipt] | None:
        return None

    def consume(self, id: str) -> ReplyEntry[Receipt] | None:
        return None

    def delete(self, id: str) -> bool:
        return True

    def scan_expired(self, *, limit: int = 100) -> Sequence[str]:
        return []

    def cleanup_expired(self, *, limit: int = 100) -> int:
        return 0


class ThirdPartyListener:
    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        return Leases(())

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class ThirdPartyStore:
    """A store that inherits nothing of ours."""

    steps: Literal["inline", "blocking", "awaited"] = "blocking"
    limits = Limits(max_batch=10)
    capabilities = Capabilities(ordered=False)
    look_interval = 1.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = SystemClock()

    async def put(self, messages: Sequence[Outgoing]) -> None: ...

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        return Leases([Leased("id", "handle", b"payload", 1, 0, 0.0, 0.0)])

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        return [True for _ in handles]

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        return [True for _ in handles]

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        return [True for _ in handles]

    async def purge(self) -> int:
        return 0

    async def delete(self, force: bool = False) -> bool:
        return False

    async def stats(self) -> QueueStats:
        return QueueStats(0, 0, 0, None)

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        return []

    def listen(self, *, in_loop: bool = False) -> Listener:
        return ThirdPartyListener()

    def close(self) -> None: ...


def third_party() -> None:
    replies: ReplyStore[Receipt] = ThirdPartyReplies()
    store: Store = ThirdPartyStore("orders")

    def sealer_for(declared: Any) -> Sealer:
        return JsonSealer(Codec(declared), store.limits.max_bytes)

    options = MailboxOptions(body_type=Order, reply_store=replies)
    orders: StoreMailbox[Order, Receipt] = StoreMailbox(store, sealer_for, options)
    as_protocol: Mailbox[Order, Receipt] = orders
    del as_protocol
    InMemoryMailbox[Order, Receipt]("x", reply_store=ThirdPartyReplies())


def awaits(call: Callable[[Mailbox[Order, Receipt]], Awaitable[None]]) -> None:
    del call


awaits(consume_async)


def sell(order: Order, job: Job) -> Receipt:
    assert_type(job.cancelled, Literal["caller", "time_limit", "shutdown", "lease"] | None)
    assert_type(job.deadline, Deadline | None)
    assert_type(job.reply(Receipt(1)), bool)
    assert_type(current_job(), Job)
    if job.attempts > 3:
        raise RetryAfter(30)
    return Receipt(len(order.item))


async def sell_async(order: Order, job: AsyncJob) -> Receipt:
    assert_type(await job.reply(Receipt(1)), bool)
    assert_type(current_async_job(), AsyncJob)
    return Receipt(len(order.item))


def workers_with_jobs(orders: Mailbox[Order, Receipt]) -> None:
    config = WorkerConfig(time_limit=30, max_put_off=3600)
    assert_type(Worker(orders, sell, config=config), Worker[Order, Receipt])
    assert_type(Worker(orders, sell_async), Worker[Order, Receipt])
    assert_type(Worker(orders, lambda order: Receipt(1)), Worker[Order, Receipt])
    assert_type(sell(Order("tea"), make_job(Order("tea"), attempts=2)), Receipt)
    assert_type(make_async_job(cancelled="shutdown"), FakeAsyncJob)


def evaluate(
    loop: MainLoop[Order, Receipt],
    requests: Mailbox[EvalRequest[Order, Receipt], EvalResult],
    results: Mailbox[EvalResult, None],
) -> None:
    dataset = Dataset.load("orders.jsonl", Order, Receipt)
    assert_type(dataset, Dataset[Order, Receipt])
    assert_type(dataset[0].expected, Receipt)
    evaluator: Evaluator[Receipt, Receipt] = exact_match
    eval_loop = EvalLoop(loop=loop, evaluator=evaluator, requests=requests)
    assert_type(eval_loop, EvalLoop[Order, Receipt, Receipt])
    run = submit_dataset(dataset, requests, reply_to=results)
    assert_type(collect_results(results, dataset=dataset, run_id=run), EvalReport)
