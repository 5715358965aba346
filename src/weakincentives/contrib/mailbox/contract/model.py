"""A simple reference model of a mailbox, which says what each operation must return."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from weakincentives.runtime.mailbox.seam.store import GivingBack

__all__ = ["DeliveredMessage", "Model"]

State = Literal["pending", "leased", "delayed"]


class DeliveredMessage(NamedTuple):
    """What a backend reports about one message that it delivered."""

    id: str
    handle: str
    body: int
    delivery_count: int
    nack_count: int
    put_off_count: int = 0


@dataclass
class ModelMessage:
    """A message of the model that was sent and not yet acknowledged."""

    body: int
    state: State = "pending"
    due: float = 0.0
    handle: str = ""
    deliveries: int = 0
    nacks: int = 0
    put_offs: int = 0
    earliest: int = 0
    """The first step in which it may have become visible."""
    latest: float = 0
    """The step by which it was certainly visible; infinite if a timeout made it visible, because
    the model does not know exactly when."""


@dataclass
class Model:
    """The unfinished messages, every receipt handle ever issued, and the current time."""

    entries: dict[str, ModelMessage] = field(default_factory=dict)
    known_ids: set[str] = field(default_factory=set)
    handles: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    step: int = 0

    def send(self, id: str, body: int, delay: float) -> None:
        """Add a message; sending a known id again changes nothing."""
        if id not in self.known_ids:
            self.known_ids.add(id)
            self.entries[id] = ModelMessage(body)
            self._show(self.entries[id], delay)

    def advance(self, seconds: float) -> None:
        """Let time pass, and make due messages visible; the backend chooses their order."""
        self.now += seconds
        self.step += 1
        for entry in self.entries.values():
            if entry.state != "pending" and entry.due <= self.now:
                entry.state, entry.handle = "pending", ""
                entry.earliest, entry.latest = self.step, float("inf")

    def received(self, got: Sequence[DeliveredMessage], asked: int, lease: float) -> None:
        """Check one receive against INV-2, INV-4, INV-5, INV-7, INV-8 and the promised order."""
        visible = len(self.in_state("pending"))
        assert len(got) == min(asked, visible), f"got {len(got)} of {visible}, asked for {asked}"
        for delivery in got:
            entry = self.entries.get(delivery.id)
            assert entry is not None, f"{delivery} was never sent, or was acknowledged"
            assert entry.state == "pending", f"{delivery} is {entry.state}"
            assert delivery.body == entry.body
            assert delivery.handle not in self.handles, "a handle was used before"
            assert delivery.delivery_count == entry.deliveries + 1
            assert delivery.nack_count == entry.nacks
            assert delivery.put_off_count == entry.put_offs
            overtaken = [
                id
                for id, other in self.entries.items()
                if other.state == "pending" and other.latest < entry.earliest
            ]
            assert not overtaken, f"{delivery.id} overtook {overtaken}"
            self.handles[delivery.handle] = delivery.id
            entry.deliveries += 1
            entry.handle = delivery.handle
            entry.state, entry.due = "leased", self.now + lease
        self.advance(0)

    def acknowledge(self, handle: str) -> bool:
        """Remove the message if the handle is still valid; return whether it was."""
        if self._held(handle) is None:
            return False
        del self.entries[self.handles[handle]]
        return True

    def release(self, handle: str, delay: float, how: GivingBack = "failed") -> bool:
        """Release the message; if it is undone, the backend chooses its place in the queue."""
        entry = self._held(handle)
        if entry is None:
            return False
        entry.deliveries -= how == "undone"
        entry.nacks += how != "undone"
        entry.put_offs += how == "put_off"
        entry.handle = ""
        self._show(entry, delay)
        if how == "undone" and not delay:
            entry.earliest, entry.latest = 0, float("inf")
        return True

    def extend(self, handle: str, seconds: float) -> bool:
        """Make the lease end ``seconds`` from now; return whether the handle was valid."""
        entry = self._held(handle)
        if entry is None:
            return False
        entry.due = self.now + seconds
        self.advance(0)
        return True

    def purge(self) -> int:
        """Remove all messages and forget their ids; return how many messages there were."""
        count = len(self.entries)
        self.entries.clear()
        self.known_ids.clear()
        return count

    def in_state(self, state: State) -> dict[str, ModelMessage]:
        """Return the messages in one state, by id."""
        return {id: entry for id, entry in self.entries.items() if entry.state == state}

    def _held(self, handle: str) -> ModelMessage | None:
        entry = self.entries.get(self.handles.get(handle, ""))
        return entry if entry is not None and entry.handle == handle else None

    def _show(self, entry: ModelMessage, delay: float) -> None:
        self.step += 1
        if delay > 0:
            entry.state, entry.due = "delayed", self.now + delay
        else:
            entry.state = "pending"
            entry.earliest = self.step
            entry.latest = self.step
