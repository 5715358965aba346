"""What users must not write: each line that ends in `# error: code` is refused with that code."""

from dataclasses import dataclass

from weakincentives import Backend, connect
from weakincentives.clock import Clock
from weakincentives.contrib.mailbox.testing import make_job
from weakincentives.dataclasses import FrozenDataclass
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime import Job, Worker
from weakincentives.runtime.mailbox import (
    CollectingMailbox,
    CompositeResolver,
    InMemoryMailbox,
    InMemoryReplyStore,
    Mailbox,
    Reply,
    ReplyStore,
)
from weakincentives.runtime.mailbox.events import MessageSent
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.reply_table import ReplyTable
from weakincentives.runtime.mailbox.seam.store import Store


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class Receipt:
    total: int


def sell(receipt: Receipt, job: Job) -> Receipt:
    job.id = "other"  # error: misc
    make_job(delivery_count="2")  # error: arg-type
    make_job(deliveries=2)  # error: call-arg
    return receipt


def handlers_with_jobs(orders: Mailbox[Order, Receipt]) -> None:
    Worker(orders, sell)  # error: arg-type


def bodies(orders: Mailbox[Order, Receipt]) -> None:
    orders.send(Receipt(1))  # error: arg-type
    orders.send_batch([Order("a"), "b"])  # error: list-item
    orders.send_expecting_reply("tea")  # error: arg-type
    orders.send(Order("tea"), 5)  # error: call-arg
    orders.send(Order("tea"), delay_seconds="5")  # error: arg-type
    orders.send(Order("tea"), attributes={"a": 1})  # error: dict-item
    for message in orders.receive():
        print(message.body.total)  # error: attr-defined
        message.body = Order("milk")  # error: misc
        message.reply(Order("tea"))  # error: arg-type
        message.extend_visibility()  # error: call-arg
    orders.receive(wait_time_seconds=None)  # error: arg-type
    orders.receive(10)  # error: call-arg


def reply_addresses(orders: Mailbox[Order, Receipt], texts: Mailbox[str, None]) -> None:
    orders.send(Order("tea"), reply_to=texts)  # error: arg-type
    orders.send(Order("tea"), reply_to="receipts")  # error: arg-type
    no_replies: Mailbox[Order] = InMemoryMailbox("x")
    no_replies.send(Order("tea"), reply_to=texts)  # error: arg-type
    no_replies.receive()[0].reply(Receipt(1))  # error: arg-type


def replies(orders: Mailbox[Order, Receipt]) -> None:
    text: Reply[str] = orders.send_expecting_reply(Order("tea"))  # error: assignment
    orders.send_expecting_reply(Order("tea")).wait(5)  # error: call-arg
    print(orders.send_expecting_reply(Order("tea")).wait().item)  # error: attr-defined
    store: ReplyStore[str] = InMemoryReplyStore[Receipt]()  # error: assignment
    del text, store


def mailboxes() -> None:
    wrong: Mailbox[Order, Receipt] = InMemoryMailbox[Receipt, Order]("x")  # error: assignment
    InMemoryMailbox[Order, Receipt]()  # error: call-arg
    InMemoryMailbox[Order, Receipt](7)  # error: arg-type
    InMemoryMailbox[Order, Receipt, str]("x")  # error: misc
    InMemoryMailbox[Order]("x", reaper="1")  # error: call-arg
    CollectingMailbox[Order]().sent.append("x")  # error: arg-type
    connect(7)  # error: arg-type
    CompositeResolver({"a": "b"})  # error: dict-item
    del wrong


def by_declared_types(place: Backend) -> None:
    orders = place.mailbox("orders", body_type=Order, reply_type=Receipt)
    orders.send(Receipt(1))  # error: arg-type
    print(orders.receive()[0].body.total)  # error: attr-defined
    orders.receive()[0].reply("done")  # error: arg-type
    print(orders.send_expecting_reply(Order("tea")).wait().item)  # error: attr-defined
    place.mailbox("orders", body_type=Order).send("tea")  # error: arg-type
    place.mailbox("orders", reply_type=Receipt).receive()[0].reply(1)  # error: arg-type
    place.mailbox("orders", Order)  # error: call-overload
    Worker(orders, refund)  # error: arg-type


def refund(receipt: Receipt) -> Receipt:
    return receipt


class HalfAStore:
    name = "half"

    def purge(self) -> int:
        return 0


class HalfAReplyStore:
    def create(self, id: str, *, ttl: float) -> bool:
        return True


class HalfAClock:
    def time(self) -> float:
        return 0.0


half_store: Store = HalfAStore()  # error: assignment
half_replies: ReplyStore[str] = HalfAReplyStore()  # error: assignment
half_clock: Clock = HalfAClock()  # error: assignment
InProcessDispatcher().subscribe(MessageSent, lambda event: event.nothing)  # error: attr-defined


@FrozenDataclass()
class Point:
    x: int


Point(1).x = 2  # error: misc
Point("1")  # error: arg-type


async def the_seam(store: Store, table: ReplyTable) -> None:
    print(store.stats().pending)  # error: attr-defined
    await store.put(["text"])  # error: list-item
    leases = await store.lease(1, 30)
    print(leases.messages[0].body)  # error: attr-defined
    row = await table.get("id")
    print(row.payload)  # error: union-attr
    run(lambda: table.create("id", 60)).upper()  # error: attr-defined
    run(store.stats())  # error: arg-type
