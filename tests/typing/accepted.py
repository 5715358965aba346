"""What users may write: a strict type checker accepts every line of it. Read, never run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, assert_type

import weakincentives
from weakincentives import Backend, connect
from weakincentives.clock import Clock, SystemClock
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
from weakincentives.runtime import MainLoop
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
from weakincentives.runtime.mailbox.store import (
    Leased,
    Leases,
    Listener,
    Outgoing,
    QueueStats,
    Seen,
    Store,
)
from weakincentives.runtime.mailbox.typed import MailboxOptions, StoreMailbox
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
    def lease(self, count: int, seconds: float, wait: float) -> Leases:
        return Leases(())

    async def lease_async(self, count: int, seconds: float, wait: float) -> Leases:
        return Leases(())

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class ThirdPartyStore:
    """A store that inherits nothing of ours."""

    steps: ClassVar[Literal["inline", "blocking", "awaited"]] = "blocking"
    limits = Limits(max_batch=10)
    capabilities = Capabilities(ordered=False)
    look_interval = 1.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = SystemClock()

    def put(self, messages: Sequence[Outgoing]) -> None: ...

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        return Leases([Leased("id", "handle", b"payload", 1, 0, 0.0, 0.0)])

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        return [True for _ in handles]

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        return [True for _ in handles]

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        return [True for _ in handles]

    def purge(self) -> int:
        return 0

    def stats(self) -> QueueStats:
        return QueueStats(0, 0, 0, None)

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        return []

    def listen(self) -> Listener:
        return ThirdPartyListener()

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

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
