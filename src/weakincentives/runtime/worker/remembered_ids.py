"""What messages lead to, answers and dead letters, goes out under ids that are known for long.

A worker that dies after the answer and before the acknowledgement leaves a message that comes
again, possibly days later, and its next answer must be recognised as the same. Once the message is
acknowledged five minutes are enough: otherwise a busy loop would fill the memory of ids.
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
"""So many ids are forgotten in one step, or"""
SECONDS = 1.0
"""what has gathered in this time, at the next look for messages."""


class RememberedIds:
    """Ids to be forgotten, gathered by one thread for each queue that they were sent to."""

    def __init__(self) -> None:
        self._ids: dict[Any, tuple[IdKeeper, list[str]]] = {}
        self.count = 0
        self._since = 0.0

    def done(self, sequels: Sequence[tuple[object, str]]) -> None:
        """Take note that a message is acknowledged which led to these ids in these mailboxes."""
        for mailbox, id in sequels:
            store = id_keeper_of(mailbox)
            if store is None:
                continue
            if not self._ids:
                self._since = time.monotonic()
            # By queue, not by Store: each message may have brought a Store of its own.
            self._ids.setdefault((backend_of(store), store.name), (store, []))[1].append(id)
            self.count += 1

    def forget_some(self) -> None:
        """Have the ids forgotten soon if there are many, or some have waited for a while."""
        if self.is_due():
            self.forget_all()

    def forget_all(self) -> None:
        """Have the ids forgotten soon."""
        for store, ids in self.take():
            run(partial(forget, store, ids))

    def is_due(self) -> bool:
        """Return whether there are many ids, or some have waited for a while."""
        return bool(self._ids) and (self.count >= MOST or time.monotonic() - self._since >= SECONDS)

    def take(self) -> list[tuple[IdKeeper, list[str]]]:
        """Return the ids to forget, by the store that knows them; each is returned once."""
        gathered, self._ids, self.count = self._ids, {}, 0
        return list(gathered.values())


async def forget(store: IdKeeper, ids: Sequence[str]) -> None:
    """Have ids forgotten soon."""
    try:
        await store.forget_soon(ids)
    except Exception as error:  # noqa: BLE001 - they are forgotten later, by themselves
        logger.debug("%d ids stay known for longer than needed: %s", len(ids), error)
