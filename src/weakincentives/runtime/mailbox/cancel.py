"""Cancelling: a message that waits is removed, and the handler of one that runs is told."""

from typing import TYPE_CHECKING, Any

from weakincentives.runtime.mailbox.seam.cancels import announce_cancel
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState, can_cancel
from weakincentives.runtime.mailbox.seam.reply_table import ReplyState

from .errors import SerializationError, UnsupportedOperationError
from .events import MessageCancelled
from .limits import check_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weakincentives.runtime.mailbox.seam.store import Store

    from .mailbox import StoreMailbox
    from .message import Message

__all__ = ["cancel", "lease_states"]


async def cancel(box: "StoreMailbox[Any, Any]", message_id: str) -> bool:
    """Cancel one message, and the reply to it; False if there is none, or it was answered."""
    store = box.store
    if not can_cancel(store):
        raise UnsupportedOperationError(
            f"{box!r} cannot cancel a message by its id (capabilities.cancels is False); call "
            f"cancel() of the reply that send_expecting_reply() returned"
        )
    (payload,) = await store.cancel([check_id("message_id", message_id)])
    if payload is None:
        return False
    announce_cancel(store)
    if await _is_answered(box, message_id, _reply_id(box, payload)):
        return False
    box._publish(MessageCancelled, message_id)
    return True


async def _is_answered(
    box: "StoreMailbox[Any, Any]", message_id: str, reply_id: str | None
) -> bool:
    """Cancel the reply to a message; return whether it was answered before."""
    table = box._reply_table
    row = None if reply_id is None or table is None else await table.get(reply_id)
    if row is None or table is None or not row.belongs_to(box._owner_of_reply(message_id)):
        return False
    if await table.cancel(row.id):
        return False
    row = await table.get(row.id)
    return row is not None and row.state in (ReplyState.RESOLVED, ReplyState.FAILED)


async def lease_states(
    box: "StoreMailbox[Any, Any]", store: "Store", messages: "Sequence[Message[Any, Any]]"
) -> "Sequence[LeaseState]":
    """Return what has become of leases; where the queue cannot say, the replies tell."""
    if can_cancel(store):
        return await store.lease_states([message.receipt_handle for message in messages])
    return ["cancelled" if await message._is_cancelled() else "held" for message in messages]


def _reply_id(box: "StoreMailbox[Any, Any]", payload: Any) -> str | None:
    try:
        return box._sealer.open(payload).reply_id
    except SerializationError:
        return None
