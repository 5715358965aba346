"""Receiving: look, and if there is nothing, listen until there is."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .envelope import Unreadable
from .errors import (
    InvalidParameterError,
    MailboxError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from .events import LeasesExpired, MessageReceived, MessagesDropped
from .flow import Flow, Look, Step, drive, step_of
from .message import Message
from .store import Leases, Listener
from .waiting import StopSignal, next_pause

if TYPE_CHECKING:
    from .typed import StoreMailbox

__all__ = ["acknowledge_batch", "exchange", "exchange_flow", "extend_batch", "glance"]

logger = logging.getLogger(__name__)

Received = list[Message[Any, Any]]


def exchange(
    box: "StoreMailbox[Any, Any]",
    done: Sequence[Message[Any, Any]],
    count: int,
    seconds: float,
    wait: float,
    first: Callable[[], object] | None = None,
    stop: StopSignal | None = None,
) -> Received:
    """Acknowledge what is done and lease what is next, in this thread; wait if asked to.

    What loops do for every message: the numbers were checked by ``limits.receive`` before, and no
    flow is made before there is something to wait for.
    """
    store = box.store
    if box.closed:
        if first is not None:
            first()
        drive(acknowledge_batch(box, done))
        return []
    held = done if _is_simple(box, done) else drive(_held(box, done))
    deadline = time.monotonic() + wait if wait else 0.0
    if wait and not held and first is None and store.capabilities.long_polls:
        return drive(_listen(box, count, seconds, deadline, Leases(()), stop))
    handles = [message.receipt_handle for message in held]
    started = store.clock.monotonic()
    if first is None:
        leases = store.lease(count, seconds, acknowledge=handles)
    else:
        with store.together():
            first()
            leases = store.lease(count, seconds, acknowledge=handles)
    _acknowledged(held, leases.acknowledged)
    if leases.messages or not wait:
        return _messages(box, leases, started + seconds)
    return drive(_listen(box, count, seconds, deadline, leases, stop))


def exchange_flow(
    box: "StoreMailbox[Any, Any]",
    done: Sequence[Message[Any, Any]],
    count: int,
    seconds: float,
    wait: float,
) -> Flow[Received]:
    """Do what `exchange` does, in steps that an event loop can await and cancel."""
    store = box.store
    if box.closed:
        yield from acknowledge_batch(box, done)
        return []
    held = yield from _held(box, done)
    deadline = time.monotonic() + wait
    leases = Leases(())
    if not wait or held or not store.capabilities.long_polls:
        started = store.clock.monotonic()
        handles = [message.receipt_handle for message in held]
        look = partial(store.lease, count, seconds, acknowledge=handles)
        leases = yield _guarded(box, step_of(store.steps, look), None)
        _acknowledged(held, leases.acknowledged)
        if leases.messages or not wait:
            return _messages(box, leases, started + seconds)
    return (yield from _listen(box, count, seconds, deadline, leases, None))


def glance(box: "StoreMailbox[Any, Any]", count: int, seconds: float) -> Received:
    """Lease what is there, in this thread: what `exchange` does with nothing done and no wait."""
    store = box.store
    started = store.clock.monotonic()
    return _messages(box, store.lease(count, seconds), started + seconds)


def acknowledge_batch(
    box: "StoreMailbox[Any, Any]", messages: Sequence[Message[Any, Any]]
) -> Flow[list[bool]]:
    """Acknowledge in one step; False where the lease had ended."""
    held = yield from _held(box, messages)
    handles = [message.receipt_handle for message in held]
    answers: Sequence[bool] = ()
    if held:
        answers = yield box.step(box.store.acknowledge, handles)
    _acknowledged(held, answers)
    done = {handle for handle, ok in zip(handles, answers, strict=True) if ok}
    return [message.replied or message.receipt_handle in done for message in messages]


def extend_batch(
    box: "StoreMailbox[Any, Any]", messages: Sequence[Message[Any, Any]], timeout: float
) -> Flow[list[bool]]:
    """Extend in one step; False where the lease had ended."""
    seconds = box.limits.visibility(timeout, "timeout")
    deadline = box.store.clock.monotonic() + seconds
    handles = [message.receipt_handle for message in messages]
    answers: Sequence[bool] = yield box.step(box.store.extend, handles, seconds)
    for message, ok in zip(messages, answers, strict=True):
        try:
            message.extended(deadline, ok, seconds)
        except ReceiptHandleExpiredError:
            pass  # the answer says so
    return list(answers)


def _is_simple(box: "StoreMailbox[Any, Any]", done: object) -> bool:
    """Whether this is what a worker most often has done: one message that owes no reply."""
    return (
        type(done) is list
        and len(done) == 1
        and type(done[0]) is Message
        and done[0].is_simply_held(box)
    )


def _held(box: "StoreMailbox[Any, Any]", messages: Sequence[Message[Any, Any]]) -> Flow[Received]:
    """Return those that are not settled yet, each once, if all may be acknowledged."""
    if not isinstance(messages, Sequence):
        raise InvalidParameterError(
            f"messages must be a list of received messages, not {messages!r:.100}"
        )
    held = {}
    for message in messages:
        if not isinstance(message, Message) or message.mailbox_name != box.name:
            raise InvalidParameterError(
                f"messages must have been received from {box.name!r}, not be {message!r:.100}"
            )
        if not message.is_finalized:
            yield from message.reply_due()
            held[message.receipt_handle] = message
    return list(held.values())


def _listen(
    box: "StoreMailbox[Any, Any]",
    count: int,
    seconds: float,
    deadline: float,
    leases: Leases,
    stop: StopSignal | None,
) -> Flow[Received]:
    with box.listening(stop) as listener:
        while not box.closed and not (stop is not None and stop.is_set()):
            _report(box, leases)
            remaining = deadline - time.monotonic()
            pause = next_pause(remaining, box.store.look_interval, leases.next_due)
            started = box.store.clock.monotonic()
            look = Look(
                partial(listener.lease, count, seconds, pause),
                partial(listener.lease_async, count, seconds, pause),
            )
            leases = yield _guarded(box, look, listener)
            if leases.messages:
                return _messages(box, leases, (leases.at or started) + seconds)
            if remaining <= 0:
                break
    return []


def _guarded(box: "StoreMailbox[Any, Any]", step: Step, listener: Listener | None) -> Step:
    """Make a look give back what it leased if it is cancelled; only an awaited one can be."""
    if not isinstance(step, Look):
        return step
    return Look(step.blocking, partial(_cancellable, box, step.awaited, listener))


async def _cancellable(
    box: "StoreMailbox[Any, Any]",
    look: Callable[[], Awaitable[Leases]],
    listener: Listener | None,
) -> Leases:
    task = asyncio.ensure_future(look())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if listener is not None:
            listener.interrupt()
        giving_back = asyncio.ensure_future(_give_back(box, task))
        while not giving_back.done():
            try:
                await asyncio.wait([giving_back])
            except asyncio.CancelledError:
                pass  # cancelled once more: what was leased is given back all the same
        raise


async def _give_back(box: "StoreMailbox[Any, Any]", look: Awaitable[Leases]) -> None:
    try:
        leases = await look
        if leases.messages:
            await box.take(box.store.release, [m.handle for m in leases.messages], 0.0)
    except MailboxError as error:
        logger.warning("%r: a cancelled receive could not give back its leases: %s", box, error)


def _messages(box: "StoreMailbox[Any, Any]", leases: Leases, deadline: float) -> Received:
    if leases.expired or leases.dropped:
        _report(box, leases)
    sealer = box.types.sealer
    messages: Received = []
    for leased in leases.messages:
        try:
            envelope = sealer.open(leased.payload)
        except SerializationError as error:
            envelope = Unreadable(error)
        messages.append(Message(box, leased, envelope, deadline))
        if box.dispatcher is not None:
            box.publish(MessageReceived, leased.id, leased.delivery_count)
    return messages


def _report(box: "StoreMailbox[Any, Any]", leases: Leases) -> None:
    if leases.expired:
        box.publish(LeasesExpired, leases.expired)
    if leases.dropped:
        logger.warning("%r: dropped %d messages older than it keeps them", box, leases.dropped)
        box.publish(MessagesDropped, leases.dropped)


def _acknowledged(messages: Sequence[Message[Any, Any]], answers: Sequence[bool]) -> None:
    for message, ok in zip(messages, answers, strict=True):
        try:
            message.settled("acknowledged", ok)
        except ReceiptHandleExpiredError:
            pass  # a batch answers for each message instead
