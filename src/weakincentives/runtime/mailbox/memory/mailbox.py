"""Mailboxes in the memory of this process."""

import threading
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from weakincentives.clock import Clock
from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox.envelope import CheckedSealer, ObjectSealer, Sealer
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.resolver import MailboxResolver
from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children, usable_lock
from weakincentives.runtime.mailbox.seam.options import DEFAULT_TTL, QueueOptions
from weakincentives.runtime.mailbox.seam.reply_table import ReplyStore
from weakincentives.serde import Codec

from .pauses import InMemoryPauseTable
from .replies import InMemoryReplyStore
from .store import InMemoryStore
from .workers import InMemoryWorkerTable

__all__ = ["InMemoryMailbox", "InMemoryMailboxFactory"]

T = TypeVar("T")
R = TypeVar("R", default=None)


class InMemoryMailbox(StoreMailbox[T, R], Generic[T, R]):
    """A `Mailbox` for tests and single processes: nothing outlives the process.

    Bodies are kept as they are. With ``serialize=True`` they are turned into JSON and back, so that
    a test finds what a durable backend would refuse; only then ``max_bytes`` limits them.
    """

    def __init__(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        reply_store: ReplyStore[Any] | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
        reaper_interval: float = 1.0,
        serialize: bool = False,
        dispatcher: Dispatcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = QueueOptions(
            *(body_type, reply_type, reply_resolver, reply_store, dispatcher),
            max_size=max_size,
            default_ttl=default_ttl,
            max_bytes=max_bytes,
            reaper_interval=reaper_interval,
        )
        self._set_up(name, options, serialize=serialize, clock=clock)

    @classmethod
    def _opened(cls, name: str, options: QueueOptions) -> Self:
        """Make a mailbox from options that have been checked."""
        mailbox = cls.__new__(cls)
        mailbox._set_up(name, options)
        return mailbox

    def _set_up(
        self,
        name: str,
        options: QueueOptions,
        *,
        serialize: bool = False,
        clock: Clock | None = None,
    ) -> None:
        limits = options.limits
        store = InMemoryStore(
            check_name(name),
            max_size=options.max_size,
            retention=options.default_ttl,
            look_interval=options.reaper_interval,
            clock=clock,
        )
        store.limits = limits

        def sealer_for(declared: Any) -> Sealer:
            codec = Codec(declared)
            return CheckedSealer(codec, limits.max_bytes) if serialize else ObjectSealer()

        replies = InMemoryReplyStore[Any](clock=clock)
        super().__init__(store, sealer_for, options.with_defaults(None, replies))

    def on_queue_of(self, other: "InMemoryMailbox[Any, Any]") -> Self:
        """Serve the queue of another mailbox of this name, and the replies to what is in it."""
        self._reply_table = other._reply_table
        self._use(other.store)
        return self


class InMemoryMailboxFactory:
    """Opens each mailbox once, so that a name always means the same queue."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        self._mailboxes: dict[str, InMemoryMailbox[Any, Any]] = {}
        self._workers, self._pauses = InMemoryWorkerTable(), InMemoryPauseTable()
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        """Go on in a forked child."""
        self._lock = usable_lock(self._lock)

    def create(self, identifier: str) -> InMemoryMailbox[Any, None]:
        """Return the mailbox of this name; if it was closed, a new one on the same queue."""
        return self._open(identifier, QueueOptions())

    def _open(self, name: str, options: QueueOptions) -> InMemoryMailbox[Any, Any]:
        """Return the mailbox of this name; while it is open, it keeps the options that it has."""
        with self._lock:
            known = self._mailboxes.get(name)
            if known is not None and not known.closed:
                known._bind(options.body_type, options.reply_type)
                return known
            made: InMemoryMailbox[Any, Any] = InMemoryMailbox._opened(name, options)
            assert isinstance(made.store, InMemoryStore)
            made.store.share(self._workers, self._pauses)
            if known is None:
                # A signal handler may have made it meanwhile, in this very thread.
                return self._mailboxes.setdefault(name, made)
            self._mailboxes[name] = made.on_queue_of(known)
            return made
