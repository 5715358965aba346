"""Lets mailboxes forget the ids of replies and dead letters when they are no longer needed.

If a worker dies between the reply and the acknowledgement, the message is delivered again, perhaps
days later, and its second reply must be recognised as a repeat. So mailboxes remember these ids for
long. Once the message is acknowledged, five minutes are enough; otherwise the ids of a busy loop
would pile up.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.optional_protocols import IdKeeper, backend_of

from .foreign import id_keeper_of

__all__ = ["RememberedIds", "forget"]

logger = get_logger(__name__)

MOST = 100
"""When there are this many ids, the stores are told to forget them."""
SECONDS = 1.0
"""If there are fewer, that happens after this many seconds."""


class RememberedIds:
    """The ids that can be forgotten, collected by one thread and grouped by queue."""

    def __init__(self) -> None:
        self._ids: dict[Any, tuple[IdKeeper, list[str]]] = {}
        self.count = 0
        self._since = 0.0

    def done(self, sequels: Sequence[tuple[object, str]]) -> None:
        """Add the ids of the replies and dead letters of a message that was acknowledged."""
        for mailbox, id in sequels:
            store = id_keeper_of(mailbox)
            if store is None:
                continue
            if not self._ids:
                self._since = time.monotonic()
            # By queue, not by Store: each message may come with its own Store object.
            self._ids.setdefault((backend_of(store), store.name), (store, []))[1].append(id)
            self.count += 1

    def forget_some(self) -> None:
        """Tell the stores to forget the ids if there are many, or some have waited for long."""
        if self.is_due():
            self.forget_all()

    def forget_all(self) -> None:
        """Tell the stores to forget all these ids soon."""
        for store, ids in self.take():
            run(partial(forget, store, ids))

    def is_due(self) -> bool:
        """Return whether there are many ids, or some have waited for a while."""
        return bool(self._ids) and (self.count >= MOST or time.monotonic() - self._since >= SECONDS)

    def take(self) -> list[tuple[IdKeeper, list[str]]]:
        """Remove and return the ids to forget, grouped by the store that remembers them."""
        gathered, self._ids, self.count = self._ids, {}, 0
        return list(gathered.values())


async def forget(store: IdKeeper, ids: Sequence[str]) -> None:
    """Tell a store to forget ids soon."""
    try:
        await store.forget_soon(ids)
    except Exception as error:  # noqa: BLE001 - they are forgotten later, by themselves
        logger.debug("%d ids stay known for longer than needed: %s", len(ids), error)
