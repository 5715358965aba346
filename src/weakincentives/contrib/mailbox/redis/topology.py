"""Where a client's servers are, and how to read what servers say about each other; no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.exceptions import ConnectionError as LostConnection

from .resp import pack

__all__ = ["Address", "Sentinel", "Topology", "WatchedPrimary", "owner_of"]

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Topology:
    """How to reach the servers of a client."""

    make: Callable[[Address | None], Any]
    """Return a new connection, not connected yet: to an address, or without one to the only
    server."""
    awaited: bool = False
    """Whether the connections are those of `redis.asyncio`."""
    seeds: Callable[[], Sequence[Address]] | None = None
    """Returns known addresses of a cluster; None if there is only one server at a time."""
    remap: Callable[[Address], Address] | None = None
    """Translates the addresses that a cluster announces, as the client does."""
    watch: "WatchedPrimary | None" = None
    """The sentinels that know where the server is, if there are any."""
    in_threads: "Callable[[], Topology] | None" = None
    """Returns a topology of the same servers with connections of `redis`, or raises if that is
    impossible; None if these are connections of `redis` already."""


@dataclass(slots=True)
class Sentinel:
    """One Sentinel server, which knows where the primary is."""

    make: Callable[[], Any]
    """Returns a new connection to it, not connected yet."""
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchedPrimary:
    """The sentinels of a primary, what to ask them, and how to read their answer.

    redis-py has all this too, with two faults: it retries a silent sentinel several times before it
    asks the next one, and concurrent calls can make it forget a sentinel.
    """

    name: str
    sentinels: Sequence[Sentinel]
    fewest_others: int
    forced_host: str | None

    @property
    def question(self) -> bytes:
        """The command that asks a sentinel."""
        return pack(b"SENTINEL", b"MASTER", self.name)

    def primary_in(self, answer: Any) -> Address:
        """Return the primary's address; raise if this sentinel knows no primary that works."""
        if isinstance(answer, Exception):
            raise answer
        state = dict(zip(answer[::2], answer[1::2], strict=True))
        flags = state[b"flags"].split(b",")
        if b"s_down" in flags or b"o_down" in flags or b"master" not in flags:
            raise LostConnection(f"the primary of {self.name!r} is down")
        if int(state[b"num-other-sentinels"]) < self.fewest_others:
            raise LostConnection(f"a sentinel of {self.name!r} sees too few other sentinels")
        return self.forced_host or state[b"ip"].decode(), int(state[b"port"])


def owner_of(slot: int, answer: Any, asked: Address) -> Address | None:
    """Return the primary that has a slot, from a node's answer to CLUSTER SLOTS."""
    for first, last, primary, *_ in answer:
        if first <= slot <= last:
            host = primary[0].decode() if primary[0] else asked[0]
            return host, int(primary[1])
    return None
