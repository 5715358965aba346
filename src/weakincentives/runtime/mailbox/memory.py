"""Mailboxes that live in this process."""

from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.clock import Clock
from weakincentives.dispatch import Dispatcher
from weakincentives.serde import Codec

from .envelope import CheckedSealer, ObjectSealer, Sealer
from .errors import InvalidParameterError
from .limits import check_name, check_positive
from .memory_replies import InMemoryReplyStore
from .memory_store import InMemoryStore
from .reply_table import ReplyStore
from .resolver import MailboxResolver
from .typed import MailboxOptions, StoreMailbox

__all__ = ["InMemoryMailbox", "InMemoryMailboxFactory"]

T = TypeVar("T")
R = TypeVar("R", default=None)


class InMemoryMailbox(StoreMailbox[T, R], Generic[T, R]):
    """A `Mailbox` for tests and single processes: nothing outlives the process.

    Bodies are kept as they are. With ``serialize=True`` they make the trip through JSON, so that
    a test finds what a durable backend would refuse.
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
        default_ttl: float | None = None,
        reaper_interval: float = 1.0,
        serialize: bool = False,
        dispatcher: Dispatcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        store = InMemoryStore(
            check_name(name),
            max_size=check_max_size(max_size),
            retention=None if default_ttl is None else check_positive("default_ttl", default_ttl),
            look_interval=check_positive("reaper_interval", reaper_interval),
            clock=clock,
        )

        def sealer_for(declared: Any) -> Sealer:
            codec = Codec(declared)
            return CheckedSealer(codec, store.limits.max_bytes) if serialize else ObjectSealer()

        replies = reply_store if reply_store is not None else InMemoryReplyStore(clock=clock)
        options = MailboxOptions(body_type, reply_type, reply_resolver, replies, dispatcher)
        super().__init__(store, sealer_for, options)


def check_max_size(value: object) -> int | None:
    """Check ``max_size``."""
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidParameterError(f"max_size must be a whole number above 0, not {value!r}")
    return value


class InMemoryMailboxFactory:
    """Makes each mailbox once, so that a name always leads to the same queue."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, InMemoryMailbox[Any, None]] = {}

    def create(self, identifier: str) -> InMemoryMailbox[Any, None]:
        """Return the mailbox of this name."""
        # setdefault, because two threads may ask for the same name at once.
        return self._mailboxes.setdefault(identifier, InMemoryMailbox(identifier))
