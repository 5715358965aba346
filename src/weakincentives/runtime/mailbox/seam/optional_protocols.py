"""Optional protocols of a Store; a mailbox looks for them once, when it is made."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard

from .reply_table import JobStart, ReplyTable
from .store import Leases, Outgoing, Store

__all__ = [
    "Answer",
    "AnswerCarrier",
    "Canceller",
    "IdKeeper",
    "LeaseCutter",
    "LeaseKeeperMaker",
    "LeaseState",
    "NewReply",
    "ReplyMaker",
    "ReplyValue",
    "StartPoster",
    "backend_of",
    "can_cancel",
    "can_carry",
    "can_make_lease_keepers",
    "can_make_replies",
    "can_post_starts",
    "cuts_leases",
    "keeps_ids",
]


def backend_of(store: object) -> object:
    """Return what a Store shares with other queues, or the Store itself if it shares nothing.

    A Store that shares a file, a server or a client names it as its ``backend_key``: if one of
    these queues hangs, all of them may hang.
    """
    return getattr(store, "backend_key", store)


class IdKeeper(Store, Protocol):
    """A Store that can forget ids early, once no sender will use them again."""

    async def forget_soon(self, ids: Sequence[str]) -> None:
        """Remember these ids for only five more minutes if they would be remembered for longer.

        May return before that is done: an id that is not forgotten costs memory, nothing else.
        """
        ...


def keeps_ids(store: Store) -> TypeGuard[IdKeeper]:
    """Return whether a Store can forget ids early."""
    return hasattr(store, "forget_soon")


class LeaseKeeperMaker(Store, Protocol):
    """A Store whose steps suspend, and that can make another one for a thread.

    Leases are extended by a thread, because a handler may block the event loop.
    """

    def lease_keeper(self) -> Store:
        """Return a blocking Store of the same queue; it is used to extend leases, then closed.

        Raises `UnsupportedOperationError` if there cannot be one. Connects to nothing yet.
        """
        ...


def can_make_lease_keepers(store: Store) -> TypeGuard[LeaseKeeperMaker]:
    """Return whether a Store can make another one that extends its leases from a thread."""
    return hasattr(store, "lease_keeper")


LeaseState: TypeAlias = Literal["held", "cancelled", "ended"]
"""What has become of a lease; ``cancelled``: it is held, but its message was cancelled."""


class Canceller(Store, Protocol):
    """A Store that can cancel single messages."""

    async def cancel(self, ids: Sequence[str]) -> Sequence[Any | None]:
        """Cancel messages; return the payload of each, None where there is no such message.

        A message that waits is removed. One that is leased stays so until its holder settles it or
        the lease ends, and is removed then, however it is given back.
        """
        ...

    async def lease_states(self, handles: Sequence[str]) -> Sequence[LeaseState]:
        """Return, for each handle, whether its lease is held and its message cancelled."""
        ...


def can_cancel(store: Store) -> TypeGuard[Canceller]:
    """Return whether a Store can cancel single messages."""
    return store.capabilities.cancels


class LeaseCutter(Store, Protocol):
    """A Store whose leases end at a certain age, however far they are extended."""

    def lease_deadline(self, handle: str) -> float:
        """Return when a lease ends, on the store's monotonic clock."""
        ...


def cuts_leases(store: Store) -> TypeGuard[LeaseCutter]:
    """Return whether a Store may extend a lease by less than it was asked to."""
    return hasattr(store, "lease_deadline")


class ReplyMaker(Store, Protocol):
    """A Store that can change messages and the replies to them in one step."""

    def is_beside(self, table: ReplyTable) -> bool:
        """Whether a step of this store can also change this table."""
        ...

    async def put_expecting(
        self, messages: Sequence[Outgoing], table: ReplyTable, replies: "Sequence[NewReply]"
    ) -> None:
        """Add the messages, and the pending reply to each of them: all or nothing."""
        ...

    async def put_reopening(self, message: Outgoing, table: ReplyTable, reply: "NewReply") -> None:
        """Add a message that is replayed, and have its reply wait for it: `ReplyTable.reopen`.

        If the message's id is known, neither changes.
        """
        ...

    async def put_off(
        self, handle: str, delay: float, table: ReplyTable, reply_id: str, owner: str
    ) -> bool:
        """Give a message back as ``put_off``, and have its reply expire that much later.

        False if its lease had ended; then nothing has changed.
        """
        ...


def can_make_replies(store: Store, table: ReplyTable | None) -> TypeGuard[ReplyMaker]:
    """Return whether a Store can add messages and their pending replies in this table at once."""
    beside = getattr(store, "is_beside", None)
    return beside is not None and table is not None and beside(table)


class StartPoster(ReplyTable, Protocol):
    """A ReplyTable that can record a start without waiting until that is done."""

    async def post_start(self, id: str, owner: str, start: JobStart) -> bool:
        """Send what `start` would record; False if that is not possible now.

        It may be lost, and others may see it later than what is done after it.
        """
        ...


def can_post_starts(table: ReplyTable) -> TypeGuard[StartPoster]:
    """Return whether a ReplyTable can record starts without waiting."""
    return hasattr(table, "post_start")


class NewReply(NamedTuple):
    """A pending reply that is to be made; the arguments of `ReplyTable.create`."""

    id: str
    ttl: float
    owner: str
    keep: float = 0.0


class ReplyValue(NamedTuple):
    """The value for a reply; it is refused if the reply has another owner."""

    id: str
    payload: Any
    owner: str | None = None
    failed: bool = False


class Answer(NamedTuple):
    """An answer that goes out in the step that acknowledges its message, if that succeeds."""

    handle: str
    """The handle of the message that it answers; the same step acknowledges it."""
    place: "ReplyTable | Store"
    """The `ReplyTable` or the `Store` that it goes to."""
    what: ReplyValue | Outgoing


class AnswerCarrier(Store, Protocol):
    """A Store that can send answers in the step that acknowledges what they answer."""

    def carries(self, place: object) -> bool:
        """Whether a step of this store can also change this `ReplyTable` or `Store`."""
        ...

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
        answers: Sequence[Answer] = (),
    ) -> Leases:
        """Acknowledge, answer, then lease, in one step."""
        ...

    async def acknowledge(
        self, handles: Sequence[str], *, answers: Sequence[Answer] = ()
    ) -> Sequence[bool]:
        """Acknowledge and answer in one step."""
        ...


def can_carry(store: Store) -> TypeGuard[AnswerCarrier]:
    """Return whether a Store can send answers in the step that acknowledges."""
    return hasattr(store, "carries")
