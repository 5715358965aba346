"""Turns telemetry on for a backend, a mailbox, a loop or a group."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from weakincentives.dispatch import Dispatcher, InProcessDispatcher
from weakincentives.runtime.group.group import LoopGroup
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import BaseBackend
from weakincentives.runtime.worker.built_on_worker import BuiltOnWorker
from weakincentives.runtime.worker.worker import Worker

__all__ = ["ServedMailbox", "Subscriber", "observe"]


@dataclass(frozen=True, slots=True)
class ServedMailbox:
    """A mailbox that a loop of this process serves, or sends its dead letters to."""

    mailbox: Any
    places: int
    """How many jobs the loop runs at once; 0 for a mailbox that it only sends to."""
    has_dead_letters: bool
    loop: Any = field(default=None, compare=False)


class Subscriber(Protocol):
    """What `observe` needs from a subscriber."""

    def subscribe_to(self, dispatcher: Dispatcher) -> None:
        """Subscribe to a dispatcher, if that was not done before."""
        ...

    def watch(self, served: ServedMailbox) -> None:
        """Take note of a mailbox of a loop that is observed."""
        ...


def observe(target: Any, *subscribers: Subscriber) -> None:
    """Tell the subscribers of all events of ``target``.

    ``target`` is a backend (with all mailboxes that are opened there, now or later), a mailbox, a
    loop or a `LoopGroup`. Loops must not run yet. A dispatcher that a mailbox or a loop has already
    is kept, and its other subscribers with it. To observe something twice changes nothing.
    """
    if not subscribers:
        raise InvalidParameterError("observe() needs a subscriber, such as PrometheusMetrics()")
    new = InProcessDispatcher()
    for dispatcher in _dispatchers(target, new):
        for subscriber in subscribers:
            subscriber.subscribe_to(dispatcher)
    for served in _served(target):
        for subscriber in subscribers:
            subscriber.watch(served)


def _dispatchers(target: Any, new: Dispatcher) -> Iterator[Dispatcher]:
    """Yield every dispatcher that something of the target publishes to; it may be the new one."""
    if isinstance(target, LoopGroup):
        for worker in _workers(target):
            yield from _dispatchers(worker, new)
    elif isinstance(target, BuiltOnWorker):
        yield from _dispatchers(target._worker, new)
    elif isinstance(target, Worker):
        yield from _of_worker(target, new)
    elif isinstance(target, BaseBackend):
        yield from target._publish_to(new)
    elif isinstance(target, StoreMailbox):
        target.dispatcher = target.dispatcher or new
        yield target.dispatcher
    else:
        raise InvalidParameterError(
            f"observe() takes a backend, a mailbox, a loop or a LoopGroup of this library, not a "
            f"{type(target).__name__}; subscribe to your own dispatcher with subscribe_to()"
        )


def _of_worker(worker: Worker[Any, Any], new: Dispatcher) -> Iterator[Dispatcher]:
    served, *others = _mailboxes(worker)
    for mailbox in (served, *others):
        if isinstance(mailbox, StoreMailbox):
            yield from _dispatchers(mailbox, new)
    if not isinstance(served, StoreMailbox):  # it may have no events of its own
        worker._dispatcher = worker._dispatcher or getattr(served, "dispatcher", None) or new
    if worker._dispatcher is not None:
        yield worker._dispatcher


def _workers(group: LoopGroup) -> list[Worker[Any, Any]]:
    """Return the workers of a group; loops that are not ours publish nothing that we know of."""
    leaves = [leaf.loop for member in group.members for leaf in member.leaves()]
    found = [loop._worker if isinstance(loop, BuiltOnWorker) else loop for loop in leaves]
    return [loop for loop in found if isinstance(loop, Worker)]


def _mailboxes(worker: Worker[Any, Any]) -> list[Any]:
    """Return the mailbox that a worker serves, and then those that it sends to."""
    letters = None if worker.dlq is None else worker.dlq.mailbox
    others = [worker._responses, letters]
    return [worker._mailbox, *(mailbox for mailbox in others if mailbox is not None)]


def _served(target: Any) -> Iterator[ServedMailbox]:
    if isinstance(target, LoopGroup):
        for member in target.members:
            for leaf in member.leaves():
                yield from _served(leaf.loop)
    elif isinstance(target, BuiltOnWorker):
        of_letters = hasattr(target, "dead_letters")
        yield from _served_by(target._worker, of_letters)
    elif isinstance(target, Worker):
        yield from _served_by(target, False)


def _served_by(worker: Worker[Any, Any], of_letters: bool) -> Iterator[ServedMailbox]:
    yield ServedMailbox(worker._mailbox, worker.config.concurrency, of_letters, worker)
    if worker.dlq is not None:
        yield ServedMailbox(worker.dlq.mailbox, 0, True, worker)
