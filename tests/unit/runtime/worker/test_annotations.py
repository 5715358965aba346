"""A handler's annotations declare the types of a mailbox that has none."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Optional, Protocol, TypeVar

import pydantic
import pytest

from weakincentives import connect
from weakincentives.runtime import (
    DeadLetter,
    DLQConsumer,
    Failure,
    InMemoryMailbox,
    Worker,
)
from weakincentives.runtime.mailbox import InvalidParameterError, SerializationError

if TYPE_CHECKING:
    from decimal import Decimal as Price

T = TypeVar("T")


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class Rush(Order):
    hours: int = 1


@dataclass(frozen=True)
class Payment:
    amount: int


@dataclass(frozen=True)
class Receipt:
    total: int


class Model(pydantic.BaseModel):
    n: int


class Named(Protocol):
    name: str


class Plain:
    """Not a model: it cannot be read from JSON."""


def fill(order: Order) -> Receipt:
    return Receipt(len(order.item))


async def fill_async(order: Order) -> Receipt:
    return Receipt(len(order.item))


def with_job(order: Order, job: Payment) -> Receipt:
    return Receipt(1)


def with_prefix(prefix: str, order: Order) -> Receipt:
    return Receipt(len(prefix + order.item))


def soon(order: Order) -> Awaitable[Receipt]:
    return fill_async(order)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Desk:
    def fill(self, order: Order) -> Receipt:
        return Receipt(1)

    @logged
    def fill_logged(self, order: Order) -> Receipt:
        return Receipt(1)

    @classmethod
    def fill_by_class(cls, order: Order) -> Receipt:
        return Receipt(1)

    @staticmethod
    def fill_static(order: Order) -> Receipt:
        return Receipt(1)

    def __call__(self, order: Order) -> Receipt:
        return Receipt(1)


class Everything(Generic[T]):
    def handle(self, body: T) -> Receipt:
        return Receipt(1)

    def handle_list(self, body: list[T]) -> Receipt:
        return Receipt(1)


def handler_of(body: Any, reply: Any = None) -> Callable[[Any], Any]:
    """Return a handler with these annotations."""

    def handle(body: Any) -> Any:
        return None

    handle.__annotations__ = {"body": body, "return": reply}
    return handle


def declared(box: Any) -> tuple[Any, Any]:
    return box._types.body, box._types.reply


def bound(handler: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("orders")
    Worker(box, handler, **options)
    return declared(box)


@pytest.mark.parametrize(
    "handler",
    [
        fill,
        fill_async,
        with_job,
        soon,
        functools.partial(with_prefix, "a"),
        functools.partial(fill),
        logged(fill),
        logged(functools.partial(with_prefix, "a")),
        functools.lru_cache(fill),
        Desk().fill,
        Desk().fill_logged,
        Desk.fill_by_class,
        Desk.fill_static,
        Desk(),
        handler_of("Order", "Receipt"),
    ],
)
def test_every_kind_of_handler_declares_its_types(handler: Callable[..., Any]) -> None:
    assert bound(handler) == (Order, Receipt)


@pytest.mark.parametrize(
    "annotation",
    [
        Order | None,
        Optional[Order],  # noqa: UP045 - users write it
        Order | Payment,
        list[Order],
        dict[str, Any],
        Annotated[Order, "an order"],
        Model,
        Model | None,
        str,
        tuple[int, ...],
        Mapping[str, int],
        DeadLetter[Order],
    ],
)
def test_every_type_that_can_be_read_is_declared(annotation: Any) -> None:
    assert bound(handler_of(annotation)) == (annotation, None)
    assert bound(handler_of(Order, annotation)) == (Order, annotation)


def test_text_inside_of_an_annotation_is_resolved() -> None:
    assert bound(handler_of(list["Order"], dict[str, "Receipt"])) == (
        list[Order],
        dict[str, Receipt],
    )


@pytest.mark.parametrize(
    "handler",
    [
        lambda body: body,
        bare(fill),
        print,
        [].append,
        dict,
        Everything[Order]().handle,
        Everything[Order]().handle_list,
        *map(handler_of, [Any, object, "Any", T, list[T], None, 5, Plain, Named, Plain | Order]),
        *map(handler_of, [Iterable[int], list[Path], Path, dict[str, Named]]),
    ],
)
def test_what_names_no_readable_type_declares_nothing(handler: Callable[..., Any]) -> None:
    assert bound(handler) == (None, None)


@pytest.mark.parametrize(
    "reply", [None, "None", Any, object, T, "Unheard", Plain, list[Order | Payment], 5]
)
def test_a_result_without_a_readable_type_declares_no_reply(reply: Any) -> None:
    assert bound(handler_of(Order, reply)) == (Order, None)


def test_error_replies_are_replies_too() -> None:
    def in_words(failure: Failure) -> str:
        return failure.text

    assert bound(fill, error_reply=in_words) == (Order, Receipt | str)
    assert bound(fill, error_reply=lambda failure: failure.text) == (Order, None)


def for_sale(price: Price) -> None: ...


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    @dataclass
    class Local:
        n: int

    def of_a_local_class(body: Local) -> None: ...

    for handler, name in [(for_sale, "Price"), (of_a_local_class, "Local")]:
        box: InMemoryMailbox[Any, Any] = InMemoryMailbox("orders")
        with pytest.raises(InvalidParameterError, match=rf"{name}.*pass body_type= to the mailbox"):
            Worker(box, handler)
        assert declared(box) == (None, None)
    Worker(InMemoryMailbox[Any, Any]("orders", body_type=int), for_sale)
    Worker(InMemoryMailbox[Any, Any]("orders", body_type=Any), for_sale)


def test_a_type_that_cannot_be_declared_is_refused_and_leaves_the_mailbox_as_it_was() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("orders")
    with pytest.raises(InvalidParameterError, match=r"cannot serve 'orders'.*tag.*body_type="):
        Worker(box, handler_of(list[Order | Payment]))
    box.send("anything")
    assert declared(box) == (None, None)


def test_of_two_handlers_that_disagree_the_second_is_refused() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("orders")
    Worker(box, fill)
    with pytest.raises(
        InvalidParameterError,
        match="takes Payment, but the bodies of this mailbox are Order",
    ):
        Worker(box, handler_of(Payment))
    with pytest.raises(InvalidParameterError, match=r"returns str, but the replies .* are Receipt"):
        Worker(box, handler_of(Order, str))
    for agreeing in (fill_async, print, handler_of(Order | None), handler_of(Any, str)):
        Worker(box, agreeing)
    assert declared(box) == (Order, Receipt)


def test_a_declared_type_wins_over_an_annotation() -> None:
    for annotation in (Order, Rush, Order | None, Any, Named, object):
        box: InMemoryMailbox[Any, Any] = InMemoryMailbox("orders", body_type=Order)
        Worker(box, handler_of(annotation, Receipt))
        assert declared(box) == (Order, None)
    for annotation in (Payment, dict, list[Order], str | None):
        with pytest.raises(InvalidParameterError, match="bodies of this mailbox are Order"):
            Worker(InMemoryMailbox("orders", body_type=Order), handler_of(annotation))


def test_a_mailbox_with_a_reply_type_alone_gets_its_body_type() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("orders", reply_type=str)
    Worker(box, handler_of(Order, str))
    assert declared(box) == (Order, str)


def test_brackets_that_promise_no_reply_contradict_no_result() -> None:
    Worker(InMemoryMailbox[Order, None]("orders"), fill)  # type: ignore[arg-type]


def test_a_mailbox_that_is_not_ours_is_left_alone() -> None:
    class Foreign:
        def receive(self, **options: Any) -> list[Any]:
            return []

    Worker(Foreign(), for_sale)  # type: ignore[arg-type]


def test_a_handler_gets_its_type_and_a_caller_too(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path / 'orders.db'}") as backend:
        orders = backend.mailbox("orders")
        worker = Worker(orders, fill)
        reply = orders.send_expecting_reply(Order("tea"))
        with pytest.raises(SerializationError, match="body_type=Order"):
            orders.send({"item": "tea"})
        worker.run(max_iterations=1, wait_time_seconds=0)
        assert reply.wait(timeout=60) == Receipt(3)


def test_a_reader_of_dead_letters_declares_their_bodies() -> None:
    def read(letter: DeadLetter[Order]) -> None: ...

    async def read_async(letter: DeadLetter[Order]) -> None: ...

    for handler in (read, read_async):
        letters: InMemoryMailbox[Any, Any] = InMemoryMailbox("dead")
        DLQConsumer(mailbox=letters, handler=handler)
        assert letters.body_type == DeadLetter[Order]


def test_a_mailbox_in_memory_takes_types_when_it_is_opened_again() -> None:
    with connect("memory://") as backend:
        orders = backend.mailbox("orders")
        assert backend.mailbox("orders", body_type=Order, reply_type=Receipt) is orders
        assert declared(orders) == (Order, Receipt)
        backend.mailbox("orders", body_type=Payment)
        assert declared(orders) == (Order, Receipt)


def test_types_that_are_refused_when_it_is_opened_again_change_nothing() -> None:
    with connect("memory://") as backend:
        orders = backend.mailbox("orders")
        with pytest.raises(InvalidParameterError, match="tag"):
            backend.mailbox("orders", body_type=list[Order | Payment])
        orders.send("anything")
        assert declared(orders) == (None, None)
