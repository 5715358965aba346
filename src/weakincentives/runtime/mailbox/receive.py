"""Receiving: lease what is there, or else wait for a message and lease that."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.driver import drive, run
from weakincentives.runtime.mailbox.seam.optional_protocols import AnswerCarrier
from weakincentives.runtime.mailbox.seam.reply_table import ReplyTable
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leases,
    Leasing,
    Listener,
    Store,
)
from weakincentives.runtime.mailbox.seam.waiting import StopSignal, next_pause

from .envelope import Unreadable
from .errors import (
    InvalidParameterError,
    MailboxClosedError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from .events import LeasesExpired, MessageReceived, MessagesDropped, MessagesSetAside
from .message import Carried, Message

if TYPE_CHECKING:
    from .mailbox import StoreMailbox

__all__ = [
    "acknowledge_batch",
    "exchange",
    "exchange_now",
    "extend_batch",
    "held_of",
    "opened",
    "release_batch",
]

logger = get_logger(__name__)

Received = list[Message[Any, Any]]

NOTHING = Leases(())


def exchange_now(
    box: "StoreMailbox[Any, Any]",
    done: Sequence[Message[Any, Any]],
    count: int,
    seconds: float,
    wait: float,
    carried: Sequence[Carried] = (),
    stop: StopSignal | None = None,
) -> Received:
    """Acknowledge the messages in ``done`` and lease the next ones, in this thread.

    Loops call this for every message, with numbers that ``limits.receive`` has checked.
    """
    held = done if _is_simple(box, done) else _held_now(box, done)
    # Not with `run`: a lambda that captures so many names costs more than the coroutine itself.
    coroutine = exchange(box, box.store, held, count, seconds, wait, carried, stop)
    try:
        return drive(coroutine)
    except BaseException:
        coroutine.close()
        raise


async def exchange(
    box: "StoreMailbox[Any, Any]",
    store: Leasing,
    held: Sequence[Message[Any, Any]],
    count: int,
    seconds: float,
    wait: float,
    carried: Sequence[Carried] = (),
    stop: StopSignal | None = None,
) -> Received:
    """Acknowledge the messages in ``held`` and lease the next ones; wait up to ``wait`` seconds.

    The answers in ``carried`` go out in the same step, which also acknowledges their messages.
    Nothing is leased from a closed mailbox, nor if ``count`` is 0.
    """
    if box.closed:
        count, wait = 0, 0.0
    deadline = time.monotonic() + wait if wait else 0.0
    leases = NOTHING
    # With long polls, a receive that does not wait costs as much as one that does: skip it.
    if held or carried or not wait or not box.capabilities.long_polls:
        started = box.store.clock.monotonic()
        handles = [message.receipt_handle for message in held]
        if carried:
            leases = await _lease_carrying(store, handles, count, seconds, carried)
            held = [*held, *(one.message for one in carried)]
        elif not count:
            leases = Leases((), await store.acknowledge(handles) if handles else ())
        else:
            try:
                leases = await store.lease(count, seconds, acknowledge=handles)
            except MailboxClosedError:
                if handles or not box.closed:
                    raise
                return []  # as if it had been closed a moment before
        _acknowledged(held, leases.acknowledged)
        if carried:
            _record_answers(carried, leases.acknowledged)
        if leases.messages or not wait:
            return opened(box, leases, started + seconds)
    return await _listen(box, store, count, seconds, deadline, leases, stop)


async def _lease_carrying(
    store: Leasing,
    handles: list[str],
    count: int,
    seconds: float,
    carried: Sequence[Carried],
) -> Leases:
    """Acknowledge, send the answers and lease, in one step."""
    # Only a message of a mailbox whose store can do this is ever asked to be carried.
    carrier = cast(AnswerCarrier, store)
    answers = [one.answer for one in carried]
    handles = [*handles, *(answer.handle for answer in answers)]
    if not count:
        return Leases((), await carrier.acknowledge(handles, answers=answers))
    return await carrier.lease(count, seconds, acknowledge=handles, answers=answers)


def _record_answers(carried: Sequence[Carried], acknowledged: Sequence[bool]) -> None:
    for one, ok in zip(carried, acknowledged[-len(carried) :], strict=True):
        if ok:
            one.done()


async def acknowledge_batch(
    box: "StoreMailbox[Any, Any]", messages: Sequence[Message[Any, Any]]
) -> list[bool]:
    """Acknowledge in one step; False where the lease had ended."""
    held = await held_of(box, messages)
    handles = [message.receipt_handle for message in held]
    answers = await box.store.acknowledge(handles) if held else ()
    _acknowledged(held, answers)
    done = {handle for handle, ok in zip(handles, answers, strict=True) if ok}
    return [message._replied or message.receipt_handle in done for message in messages]


async def extend_batch(
    box: "StoreMailbox[Any, Any]",
    store: Store,
    messages: Sequence[Message[Any, Any]],
    timeout: float,
) -> list[bool]:
    """Extend in one step of a store of the queue; False where the lease had ended."""
    seconds = box.limits.visibility(timeout, "timeout")
    deadline = box.store.clock.monotonic() + seconds
    handles = [message.receipt_handle for message in messages]
    answers = await store.extend(handles, seconds)
    for message, ok in zip(messages, answers, strict=True):
        try:
            message._record_extension(deadline, ok, seconds)
        except ReceiptHandleExpiredError:
            pass  # the result says so
    return list(answers)


async def release_batch(
    box: "StoreMailbox[Any, Any]",
    messages: Sequence[Message[Any, Any]],
    delay: float,
    how: GivingBack,
) -> list[bool]:
    """Give back in one step what is still held; False where the lease had ended."""
    # Each once: a store may look for all of them before it gives back the first.
    held = {one.receipt_handle: one for one in messages if not one.is_finalized}
    done: dict[str, bool] = {}
    if how == "put_off" and box._reply_table is not None:
        for handle, message in held.items():
            if message.expects_reply():
                done[handle] = await _put_off(box, box._reply_table, message, delay)
    rest = [handle for handle in held if handle not in done]
    if rest:
        done.update(zip(rest, await box.store.release(rest, delay, how), strict=True))
    for handle, message in held.items():
        try:
            message._settle("nacked", done[handle], delay, how)
        except ReceiptHandleExpiredError:
            pass  # the result says so
    return [message.is_finalized for message in messages]


async def _put_off(
    box: "StoreMailbox[Any, Any]", table: ReplyTable, message: Message[Any, Any], delay: float
) -> bool:
    """Give back a message whose caller waits; the time until it comes again is not the caller's."""
    handle, reply_id = message.receipt_handle, message._envelope.reply_id
    assert reply_id is not None
    owner, maker = box._owner_of_reply(message.id), box._reply_maker
    if maker is not None:
        return await maker.put_off(handle, delay, table, reply_id, owner)
    if not message._is_prolonged:  # by an earlier try
        await table.prolong(reply_id, delay, owner)
        message._is_prolonged = True
    (done,) = await box.store.release((handle,), delay, "put_off")
    return done


def _is_simple(box: "StoreMailbox[Any, Any]", done: object) -> bool:
    """Whether this is the common case: at most one message, with no reply due."""
    return (
        type(done) is list
        and len(done) <= 1
        and (not done or (type(done[0]) is Message and done[0]._is_simply_held(box)))
    )


def _held_now(box: "StoreMailbox[Any, Any]", messages: Sequence[Message[Any, Any]]) -> Received:
    return run(lambda: held_of(box, messages))


async def held_of(box: "StoreMailbox[Any, Any]", messages: Sequence[Message[Any, Any]]) -> Received:
    """Return each message that is not settled yet once; raise if one may not be acknowledged."""
    if not isinstance(messages, Sequence):
        raise InvalidParameterError(
            f"messages must be a list of received messages, not {messages!r:.100}"
        )
    held = {}
    for message in messages:
        if not isinstance(message, Message) or message._mailbox.name != box.name:
            raise InvalidParameterError(
                f"messages must be messages received from {box.name!r}, not {message!r:.100}"
            )
        if not message.is_finalized:
            await message._check_no_reply_due()
            held[message.receipt_handle] = message
    return list(held.values())


async def _listen(
    box: "StoreMailbox[Any, Any]",
    store: Leasing,
    count: int,
    seconds: float,
    deadline: float,
    leases: Leases,
    stop: StopSignal | None,
) -> Received:
    with box._listening(store, stop) as listener:
        return await _listen_with(listener, box, count, seconds, deadline, leases, stop)


async def _listen_with(
    listener: Listener,
    box: "StoreMailbox[Any, Any]",
    count: int,
    seconds: float,
    deadline: float,
    leases: Leases,
    stop: StopSignal | None,
) -> Received:
    while not box.closed and not (stop is not None and stop.is_set()):
        _report(box, leases)
        remaining = deadline - time.monotonic()
        pause = next_pause(remaining, box.store.look_interval, leases.next_due)
        started = box.store.clock.monotonic()
        try:
            leases = await listener.lease(count, seconds, pause)
        except MailboxClosedError:
            if not box._was_closed():
                raise
            break
        if leases.messages:
            return opened(box, leases, (leases.at or started) + seconds)
        if remaining <= 0:
            break
    return []


def opened(box: "StoreMailbox[Any, Any]", leases: Leases, deadline: float) -> Received:
    """Return the leased messages; their leases end at ``deadline`` at the latest."""
    if leases.expired or leases.dropped or leases.set_aside:
        _report(box, leases)
    sealer = box._types.sealer
    messages: Received = []
    for leased in leases.messages:
        try:
            envelope = sealer.open(leased.payload)
        except SerializationError as error:
            envelope = Unreadable(error)
        messages.append(Message(box, leased, envelope, deadline))
        if box.dispatcher is not None:
            first = leased.delivery_count == 1
            waited = max(0.0, leased.first_received_at - leased.enqueued_at) if first else None
            count, attributes = leased.delivery_count, envelope.attributes
            box._publish(MessageReceived, leased.id, count, waited, attributes)
    return messages


def _report(box: "StoreMailbox[Any, Any]", leases: Leases) -> None:
    if leases.expired:
        box._publish(LeasesExpired, leases.expired)
    if leases.dropped:
        logger.warning("%s: dropped %d messages older than its retention", box, leases.dropped)
        box._publish(MessagesDropped, leases.dropped)
    if leases.set_aside:
        logger.warning("%r: set aside %d unreadable records", box, leases.set_aside)
        box._publish(MessagesSetAside, leases.set_aside)


def _acknowledged(messages: Sequence[Message[Any, Any]], answers: Sequence[bool]) -> None:
    for message, ok in zip(messages, answers, strict=True):
        try:
            message._settle("acknowledged", ok)
        except ReceiptHandleExpiredError:
            pass  # a batch returns False for this message instead
