"""A place where queues live, reached by a URL."""

import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, Self, TypeVar, overload, runtime_checkable

from weakincentives.dispatch import Dispatcher, publish
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.api import Mailbox
from weakincentives.runtime.mailbox.errors import MailboxClosedError, UnsupportedOperationError
from weakincentives.runtime.mailbox.events import MailboxEvent, QueuePaused, QueueResumed
from weakincentives.runtime.mailbox.limits import check_id
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.pauses import (
    QueuePause,
    encoded_pause,
    new_pause,
    pauses_of,
)
from weakincentives.runtime.mailbox.replies.reply import PendingReply, Reply
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.replies.typed_reply_table import TypedReplyTable
from weakincentives.runtime.mailbox.resolver import MailboxResolver
from weakincentives.runtime.mailbox.workers import WorkerInfo, worker_of

from .driver import Make, Steps, run
from .forks import begin_anew_in_children, usable_lock
from .options import DEFAULT_TTL, QueueOptions
from .pause_table import PauseTable
from .reply_table import ReplyStore
from .step_threads import hop
from .store import Store
from .worker_table import WorkerTable

__all__ = ["Backend", "BaseBackend"]

logger = get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")
M = TypeVar("M", bound=StoreMailbox[Any, Any])
S = TypeVar("S", bound=ReplyStore[Any] | None)

MOST_GONE = 64
"""How many mailboxes that nobody has any more are remembered at least."""


@runtime_checkable
class Backend(Protocol):
    """Opens mailboxes and a reply store in one place; also a `MailboxFactory`."""

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: type[T],
        reply_type: type[R],
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> Mailbox[T, R]: ...

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: type[T],
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> Mailbox[T, Any]: ...

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: type[R],
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> Mailbox[Any, R]: ...

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> Mailbox[Any, Any]: ...

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> Mailbox[Any, Any]:
        """Open the mailbox of this name; the first message creates its queue.

        ``max_bytes`` is the size of the largest message that it takes. None means the size that
        the URL says, or else the backend's own limit, 1 MiB in most.
        """
        ...

    def queues(self) -> list[str]:
        """List the queues that hold messages, or are known here."""
        ...

    def delete(self, name: str, *, force: bool = False) -> bool:
        """Delete a queue and all that is known of it; return False if there is none.

        Raises `QueueNotEmptyError` if it has messages: with ``force`` they are lost, and whoever
        waits for a reply to one of them waits in vain.
        """
        ...

    async def delete_async(self, name: str, *, force: bool = False) -> bool:
        """Do what `delete` does."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """List the processes that serve queues here, by host and process id.

        A process that was killed is listed for up to 20 seconds more.
        """
        ...

    async def workers_async(self) -> list[WorkerInfo]:
        """Do what `workers` does."""
        ...

    def pause(self, name: str, *, because: str | None = None, by: str | None = None) -> QueuePause:
        """Pause a queue: nothing is received from it, by any process, until it is resumed.

        Jobs that run finish, and messages can be sent. ``because`` is for people; ``by`` is the
        host and the process id if it is left out.
        """
        ...

    async def pause_async(
        self, name: str, *, because: str | None = None, by: str | None = None
    ) -> QueuePause:
        """Do what `pause` does."""
        ...

    def resume(self, name: str, *, by: str | None = None) -> bool:
        """Resume a queue and wake its consumers; False if it was not paused."""
        ...

    async def resume_async(self, name: str, *, by: str | None = None) -> bool:
        """Do what `resume` does."""
        ...

    def paused(self) -> list[QueuePause]:
        """List the queues that are paused, by name."""
        ...

    async def paused_async(self) -> list[QueuePause]:
        """Do what `paused` does."""
        ...

    def reply_store(self) -> ReplyStore[Any]:
        """Return the store for the replies to `send_expecting_reply`."""
        ...

    def reply(self, id: str, *, reply_type: Any = None) -> Reply[Any]:
        """Return a handle on the reply with this id, which any process may use."""
        ...

    def create(self, identifier: str) -> Mailbox[Any, None]:
        """Open an untyped mailbox; resolvers call this to find a ``reply_to``."""
        ...

    def close(self) -> None:
        """Close every mailbox that was opened here, and all files and connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: Any) -> None: ...


class BaseBackend(ABC, Generic[M, S]):
    """What the backends of this library share: they track their mailboxes and close them."""

    def __init__(self, place: str, replies: S, max_bytes: int | None = None) -> None:
        self._place = place
        self._replies = replies
        self._max_bytes = max_bytes
        # Weak, without a callback: an interrupt in a callback would be lost.
        self._mailboxes: dict[int, weakref.ref[M]] = {}
        self._prune_at = MOST_GONE
        self._lock: Any = threading.RLock()
        self._closed = False
        self._dispatcher: Dispatcher | None = None
        begin_anew_in_children(self)

    @abstractmethod
    def _open(self, name: str, options: QueueOptions) -> M:
        """Make a mailbox; its options have been checked."""

    @abstractmethod
    def queues(self) -> list[str]:
        """List the queues that hold messages, or are known here."""

    def _worker_table(self) -> WorkerTable | None:
        """Return the table of workers; None if there is none here."""
        return None

    def _pause_table(self) -> PauseTable | None:
        """Return the table of paused queues; None if there is none here."""
        return None

    def _disconnect(self) -> None:
        """Close files and connections, after all mailboxes."""

    def delete(self, name: str, *, force: bool = False) -> bool:
        """Delete a queue and all that is known of it; return False if there is none.

        Raises `QueueNotEmptyError` if it has messages: with ``force`` they are lost, and whoever
        waits for a reply to one of them waits in vain.
        """
        self._check_open()
        return run(lambda: self._delete_with_pause(name, force))

    async def delete_async(self, name: str, *, force: bool = False) -> bool:
        """Do what `delete` does."""
        self._check_open()
        return await hop(lambda: self._delete_with_pause(name, force), self._steps_of(name))

    async def _delete_with_pause(self, name: str, force: bool) -> bool:
        """Delete a queue, then its pause: a queue that is made anew must not be paused."""
        deleted = await self._delete(name, force)
        if (table := self._pause_table()) is not None:
            await table.resume(name)
        return deleted

    async def _delete(self, name: str, force: bool) -> bool:
        return await self.mailbox(name).store.delete(force)

    def _steps_of(self, name: str) -> object:
        """Return what an event loop's threads for a queue are chosen by; does no I/O."""
        return self.mailbox(name).store

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: type[T],
        reply_type: type[R],
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> StoreMailbox[T, R]: ...

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: type[T],
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> StoreMailbox[T, Any]: ...

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: type[R],
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> StoreMailbox[Any, R]: ...

    @overload
    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> M: ...

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
    ) -> M:
        """Open the mailbox of this name; the first message creates its queue.

        ``max_bytes`` is the size of the largest message that it takes. None means the size that
        the URL says, or else the backend's own limit, 1 MiB in most.
        """
        options = QueueOptions(
            body_type=body_type,
            reply_type=reply_type,
            reply_resolver=reply_resolver,
            reply_store=self._replies,
            dispatcher=self._dispatcher,
            max_size=max_size,
            default_ttl=default_ttl,
            max_bytes=self._max_bytes if max_bytes is None else max_bytes,
        )
        self._check_open()
        mailbox = self._open(name, options)
        with self._lock:
            self._remember(mailbox)
        return mailbox

    def _remember(self, mailbox: M) -> None:
        if len(self._mailboxes) >= self._prune_at:
            self._mailboxes = {id(one): weakref.ref(one) for one in self._present()}
            self._prune_at = MOST_GONE + 2 * len(self._mailboxes)
        self._mailboxes[id(mailbox)] = weakref.ref(mailbox)

    def _present(self) -> list[M]:
        """Return the mailboxes that somebody still has."""
        found = [one() for one in list(self._mailboxes.values())]
        return [one for one in found if one is not None]

    def _publish_to(self, dispatcher: Dispatcher) -> list[Dispatcher]:
        """Give the dispatcher to every mailbox without one, also to those that are opened later.

        Return all dispatchers that mailboxes of this backend publish to.
        """
        with self._lock:
            self._dispatcher = self._dispatcher or dispatcher
            mailboxes = self._present()
        for mailbox in mailboxes:
            mailbox.dispatcher = mailbox.dispatcher or self._dispatcher
        return [self._dispatcher, *(one.dispatcher for one in mailboxes if one.dispatcher)]

    def workers(self) -> list[WorkerInfo]:
        """List the processes that serve queues here, by host and process id.

        A process that was killed is listed for up to 20 seconds more.
        """
        return run(lambda: self._workers(self._known_worker_table()))

    async def workers_async(self) -> list[WorkerInfo]:
        """Do what `workers` does."""
        table = self._known_worker_table()
        return await _in_loop(table, lambda: self._workers(table))

    def _known_worker_table(self) -> WorkerTable:
        self._check_open()
        table = self._worker_table()
        if table is None:
            raise UnsupportedOperationError(f"{self!r} cannot list its workers")
        return table

    async def _workers(self, table: WorkerTable) -> list[WorkerInfo]:
        found = [worker_of(row) for row in await table.rows()]
        workers = [worker for worker in found if worker is not None]
        if len(workers) < len(found):
            logger.warning("%r: %d workers cannot be read", self, len(found) - len(workers))
        return sorted(workers, key=lambda worker: (worker.host, worker.pid, worker.id))

    def pause(self, name: str, *, because: str | None = None, by: str | None = None) -> QueuePause:
        """Pause a queue: nothing is received from it, by any process, until it is resumed.

        Jobs that run finish, and messages can be sent. ``because`` is for people; ``by`` is the
        host and the process id if it is left out.
        """
        table, pause = self._known_pause_table(), new_pause(name, by, because)
        run(lambda: table.pause(name, encoded_pause(pause)))
        return self._was_paused(pause)

    async def pause_async(
        self, name: str, *, because: str | None = None, by: str | None = None
    ) -> QueuePause:
        """Do what `pause` does."""
        table, pause = self._known_pause_table(), new_pause(name, by, because)
        await _in_loop(table, lambda: table.pause(name, encoded_pause(pause)))
        return self._was_paused(pause)

    def _was_paused(self, pause: QueuePause) -> QueuePause:
        self._publish(QueuePaused(pause.queue, pause.by, pause.because))
        return pause

    def resume(self, name: str, *, by: str | None = None) -> bool:
        """Resume a queue and wake its consumers; False if it was not paused."""
        table, pause = self._known_pause_table(), new_pause(name, by)
        return self._was_resumed(run(lambda: table.resume(name)), pause)

    async def resume_async(self, name: str, *, by: str | None = None) -> bool:
        """Do what `resume` does."""
        table, pause = self._known_pause_table(), new_pause(name, by)
        return self._was_resumed(await _in_loop(table, lambda: table.resume(name)), pause)

    def _was_resumed(self, done: bool, pause: QueuePause) -> bool:
        if done:
            self._publish(QueueResumed(pause.queue, pause.by))
        return done

    def paused(self) -> list[QueuePause]:
        """List the queues that are paused, by name."""
        table = self._known_pause_table()
        return pauses_of(run(table.notes))

    async def paused_async(self) -> list[QueuePause]:
        """Do what `paused` does."""
        table = self._known_pause_table()
        return pauses_of(await _in_loop(table, table.notes))

    def _known_pause_table(self) -> PauseTable:
        self._check_open()
        table = self._pause_table()
        if table is None:
            raise UnsupportedOperationError(f"{self!r} cannot pause queues")
        return table

    def _publish(self, event: MailboxEvent) -> None:
        if self._dispatcher is not None:
            publish(self._dispatcher, event)

    def reply_store(self) -> S:
        """Return the store for the replies to `send_expecting_reply`."""
        return self._replies

    def reply(self, id: str, *, reply_type: Any = None) -> PendingReply[Any]:
        """Return a handle on the reply with this id, which any process may use.

        ``reply_type`` is what its value is decoded as.
        """
        self._check_open()
        if not isinstance(self._replies, StoredReplies):
            raise UnsupportedOperationError(f"{self!r} has no reply store")
        replies = TypedReplyTable(self._replies._table, Any if reply_type is None else reply_type)
        return PendingReply(replies, check_id("id", id), store_of=self._store_of)

    def _store_of(self, queue: str) -> Store | None:
        """Return the store of a queue, to ask it about the message that a reply belongs to."""
        return self.mailbox(queue).store

    def create(self, identifier: str) -> M:
        """Open an untyped mailbox; resolvers call this to find a ``reply_to``."""
        return self.mailbox(identifier)

    def close(self) -> None:
        """Close every mailbox that was opened here, and all files and connections."""
        with self._lock:
            self._closed = True
            mailboxes = self._present()
        for mailbox in mailboxes:
            mailbox.close()
        self._disconnect()

    def _begin_anew(self) -> None:
        """Go on in a forked child."""
        self._lock = usable_lock(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"

    def _check_open(self) -> None:
        if self._closed:
            raise MailboxClosedError(f"{self!r} was closed")


class _Stepping(Protocol):
    @property
    def steps(self) -> Steps: ...


async def _in_loop(table: _Stepping, make: Make[V]) -> V:
    """Await steps of a table, in another thread if they would block."""
    return await (hop(make, table) if table.steps == "blocking" else make())
