"""A mailbox in a page: what each step must answer, by lists and a number for the time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Delivery", "Model"]

State = Literal["pending", "leased", "delayed"]


class Delivery(NamedTuple):
    """What a backend says about one message that it handed out."""

    id: str
    handle: str
    body: int
    delivery_count: int
    nack_count: int


@dataclass
class Entry:
    """A message that was sent and is not done."""

    body: int
    state: State = "pending"
    due: float = 0.0
    handle: str = ""
    deliveries: int = 0
    nacks: int = 0
    earliest: int = 0
    """The step since which it may have been visible."""
    latest: float = 0
    """The step since which it was visible for certain; infinite where only time made it so."""


@dataclass
class Model:
    """The messages that are not done, every handle ever given out, and the time."""

    entries: dict[str, Entry] = field(default_factory=dict)
    known_ids: set[str] = field(default_factory=set)
    handles: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    step: int = 0

    def send(self, id: str, body: int, delay: float) -> None:
        """Take in a message; a known id changes nothing."""
        if id not in self.known_ids:
            self.known_ids.add(id)
            self.entries[id] = Entry(body)
            self._show(self.entries[id], delay)

    def advance(self, seconds: float) -> None:
        """Let time pass: what has come due is visible, when exactly is the backend's choice."""
        self.now += seconds
        self.step += 1
        for entry in self.entries.values():
            if entry.state != "pending" and entry.due <= self.now:
                entry.state, entry.handle = "pending", ""
                entry.earliest, entry.latest = self.step, float("inf")

    def received(self, got: Sequence[Delivery], asked: int, lease: float) -> None:
        """Check one look into the queue against INV-2, 4, 5, 7, 8 and the promised order."""
        visible = len(self.in_state("pending"))
        assert len(got) == min(asked, visible), f"{len(got)} of {visible} came, {asked} asked"
        for delivery in got:
            entry = self.entries.get(delivery.id)
            assert entry is not None, f"{delivery} was never sent, or is done"
            assert entry.state == "pending", f"{delivery} is {entry.state}"
            assert delivery.body == entry.body
            assert delivery.handle not in self.handles, "a handle was used before"
            assert delivery.delivery_count == entry.deliveries + 1
            assert delivery.nack_count == entry.nacks
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
        """Remove the message of a handle that still holds."""
        if self._held(handle) is None:
            return False
        del self.entries[self.handles[handle]]
        return True

    def release(self, handle: str, delay: float) -> bool:
        """Give the message back."""
        entry = self._held(handle)
        if entry is None:
            return False
        entry.nacks += 1
        entry.handle = ""
        self._show(entry, delay)
        return True

    def extend(self, handle: str, seconds: float) -> bool:
        """Let the lease end so many seconds from now."""
        entry = self._held(handle)
        if entry is None:
            return False
        entry.due = self.now + seconds
        self.advance(0)
        return True

    def purge(self) -> int:
        """Throw everything away; ids stay known."""
        count = len(self.entries)
        self.entries.clear()
        return count

    def in_state(self, state: State) -> dict[str, Entry]:
        """Return the messages of one state by id."""
        return {id: entry for id, entry in self.entries.items() if entry.state == state}

    def _held(self, handle: str) -> Entry | None:
        entry = self.entries.get(self.handles.get(handle, ""))
        return entry if entry is not None and entry.handle == handle else None

    def _show(self, entry: Entry, delay: float) -> None:
        self.step += 1
        if delay > 0:
            entry.state, entry.due = "delayed", self.now + delay
        else:
            entry.state = "pending"
            entry.earliest = self.step
            entry.latest = self.step
