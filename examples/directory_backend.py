"""A backend of one's own: each queue is a JSON file in a directory, shared by all processes.

It shows what docs/backends.md explains, and passes the contract for what it declares. It reads and
writes a whole queue in each step, so it is for reading, not for production.
"""

import base64
import fcntl
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox import UnsupportedOperationError
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.memory.replies import InMemoryReplyTable
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.backend import BaseBackend
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.options import QueueOptions
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leased,
    Leases,
    Outgoing,
    QueueStats,
    Seen,
)
from weakincentives.runtime.mailbox.seam.waiting import Bell, BellListener

Record = dict[str, Any]


class DirectoryStore:
    """One queue: a list of records, in the order in which they are received."""

    steps: Steps = "blocking"
    limits = Limits()
    capabilities = Capabilities(
        idempotent_send=False,
        remembers_sequels=False,
        uncounted_releases=False,
        cancels=False,
        lists_workers=False,
        pauses=False,
        peeks=False,
    )
    look_interval = 1.0

    def __init__(self, directory: Path, name: str, bell: Bell) -> None:
        self.name = check_name(name)
        self.clock: Clock = SystemClock()
        self._path = directory / f"{name}.json"
        self._bell = bell

    async def put(self, messages: Sequence[Outgoing]) -> None:
        """Append the messages."""
        now = self.clock.time()
        with self._records() as records:
            for message in messages:
                payload = base64.b64encode(message.payload).decode()
                records.append(
                    {"id": message.id, "payload": payload, "sent": now, "token": None}
                    | {"visible": now + message.delay, "waits": message.delay > 0}
                    | {"deliveries": 0, "nacks": 0, "first": 0.0}
                )
        self._bell.ring(len(messages))

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease, under one lock."""
        now = self.clock.time()
        leased: list[Leased] = []
        due: list[float] = []
        with self._records() as records:
            acknowledged = self._settled(records, acknowledge, now)
            expired = _promote(records, now)
            for record in records:
                if record["visible"] <= now and len(leased) < count:
                    leased.append(_lease(record, now, now + seconds))
                if record["visible"] > now:
                    due.append(record["visible"] - now)
        done = [removed is not None for removed in acknowledged]
        return Leases(leased, done, min(due, default=None), expired)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages whose leases last."""
        with self._records() as records:
            done = self._settled(records, handles, self.clock.time())
        return [removed is not None for removed in done]

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Move the messages to the end of the queue."""
        now = self.clock.time()
        with self._records() as records:
            released = self._settled(records, handles, now)
            for record in filter(None, released):
                record |= {"token": None, "visible": now + delay, "waits": delay > 0}
                record["nacks"] += 1
                records.append(record)
        self._bell.ring(len(handles))
        return [record is not None for record in released]

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end later."""
        now = self.clock.time()
        with self._records() as records:
            held = [_held(records, handle, now) for handle in handles]
            for record in filter(None, held):
                record["visible"] = now + seconds
        return [record is not None for record in held]

    async def purge(self) -> int:
        """Remove every message."""
        with self._records() as records:
            count = len(records)
            records.clear()
        return count

    async def stats(self) -> QueueStats:
        """Count the messages by state."""
        now = self.clock.time()
        with self._records() as records:
            pending = [one for one in records if one["visible"] <= now]
            leased = sum(one["token"] is not None for one in records if one["visible"] > now)
        oldest = min((one["sent"] for one in pending), default=None)
        delayed = len(records) - len(pending) - leased
        return QueueStats(
            len(pending), leased, delayed, None if oldest is None else max(0.0, now - oldest)
        )

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Refuse, as declared."""
        raise UnsupportedOperationError("a queue in a directory cannot be looked into")

    def listen(self, *, in_loop: bool = False) -> BellListener:
        """Wait for senders of this process; those of others are seen by the next look."""
        return BellListener(self, self._bell, in_loop=in_loop)

    def close(self) -> None:
        """Nothing stays open between two steps."""

    @contextmanager
    def _records(self) -> Iterator[list[Record]]:
        """Lock the queue, read it, and write it back whole if nothing went wrong."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self._path.read_text() if self._path.exists() else "[]"
            records = json.loads(before)
            yield records
            after = json.dumps(records)
            if after != before:
                new = self._path.with_suffix(".new")
                new.write_text(after)
                new.replace(self._path)

    @staticmethod
    def _settled(records: list[Record], handles: Sequence[str], now: float) -> list[Record | None]:
        """Take out the records whose leases last; None where a lease had ended."""
        held = [_held(records, handle, now) for handle in handles]
        for record in filter(None, held):
            if record in records:
                records.remove(record)
        return held


def _held(records: list[Record], handle: str, now: float) -> Record | None:
    for record in records:
        if record["token"] == handle and record["visible"] > now:
            return record
    return None


def _promote(records: list[Record], now: float) -> int:
    """Move what has come due to the end of the queue; return how many leases ran out."""
    came_due = [one for one in records if one["waits"] and one["visible"] <= now]
    expired = sum(one["token"] is not None for one in came_due)
    for record in sorted(came_due, key=lambda one: one["visible"]):
        records.remove(record)
        records.append(record | {"token": None, "waits": False})
    return expired


def _lease(record: Record, now: float, until: float) -> Leased:
    record |= {
        "token": secrets.token_hex(8),
        "visible": until,
        "waits": True,
        "deliveries": record["deliveries"] + 1,
        "first": record["first"] or now,
    }
    return Leased(
        record["id"],
        record["token"],
        base64.b64decode(record["payload"]),
        record["deliveries"],
        record["nacks"],
        record["sent"],
        record["first"],
    )


class Replies(InMemoryReplyTable):
    """Replies as bytes, so that a value that is not JSON is refused here as anywhere."""

    keeps_objects = False


class DirectoryBackend(BaseBackend[StoreMailbox[Any, Any], StoredReplies[Any]]):
    """The queues of one directory; replies are awaited in this process only."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory), StoredReplies(Replies()))
        self._directory = directory
        self._bells: dict[str, Bell] = {}

    def queues(self) -> list[str]:
        """List the files."""
        return sorted(path.stem for path in self._directory.glob("*.json"))

    def _open(self, name: str, options: QueueOptions) -> StoreMailbox[Any, Any]:
        if options.max_size is not None or options.default_ttl is not None:
            raise UnsupportedOperationError("a directory takes neither max_size nor default_ttl")
        store = DirectoryStore(self._directory, name, self._bells.setdefault(name, Bell()))
        options = options.with_defaults(self, self._replies)
        return StoreMailbox(store, options.json_sealer, options)


def main() -> None:
    with DirectoryBackend(Path.cwd()) as backend:
        orders = backend.mailbox("orders", body_type=str)
        orders.send("tea")
        (message,) = orders.receive(wait_time_seconds=1)
        print(message.body, message.delivery_count)
        message.acknowledge()
        print(backend.queues(), orders.approximate_count())


if __name__ == "__main__":
    main()
