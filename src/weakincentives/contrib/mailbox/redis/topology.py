"""Where a client's servers are, and how to read what they say of each other; no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.exceptions import ConnectionError as LostConnection

from .resp import pack

__all__ = ["Address", "Sentinel", "Topology", "WatchedPrimary", "owner_of"]

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Topology:
    """How to make connections, and in a cluster, whom to ask where a slot is."""

    make: Callable[[Address | None], Any]
    """Return a new connection, not connected yet; to an address of a cluster, or to the one."""
    awaited: bool = False
    """The connections are those of `redis.asyncio`."""
    seeds: Callable[[], Sequence[Address]] | None = None
    """Known addresses of a cluster; None where there is one server at a time."""
    remap: Callable[[Address], Address] | None = None
    """How the client translates the addresses that a cluster announces."""
    watch: "WatchedPrimary | None" = None
    """Whom to ask where the one server is, if there are sentinels."""
    in_threads: "Callable[[], Topology] | None" = None
    """Return the same with connections of `redis`, or raise if there can be none; None if these
    are connections of `redis` already."""


@dataclass(slots=True)
class Sentinel:
    """One of those who know where the primary is."""

    make: Callable[[], Any]
    """Return a new connection to it, not connected yet."""
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchedPrimary:
    """The sentinels of a primary, what to ask them, and how to read their answer.

    redis-py has all this too, with two faults: it asks a sentinel that is silent again and again
    before it goes on to the next, and calls that come at once can make it forget a sentinel.
    """

    name: str
    sentinels: Sequence[Sentinel]
    fewest_others: int
    forced_host: str | None

    @property
    def question(self) -> bytes:
        """What to send."""
        return pack(b"SENTINEL", b"MASTER", self.name)

    def primary_in(self, answer: Any) -> Address:
        """Return where the primary is, or raise if this sentinel does not see one that works."""
        if isinstance(answer, Exception):
            raise answer
        state = dict(zip(answer[::2], answer[1::2], strict=True))
        flags = state[b"flags"].split(b",")
        if b"s_down" in flags or b"o_down" in flags or b"master" not in flags:
            raise LostConnection(f"the primary of {self.name!r} is down")
        if int(state[b"num-other-sentinels"]) < self.fewest_others:
            raise LostConnection(f"a sentinel of {self.name!r} sees too few others")
        return self.forced_host or state[b"ip"].decode(), int(state[b"port"])


def owner_of(slot: int, answer: Any, asked: Address) -> Address | None:
    """Read the primary of a slot from the answer of a node to CLUSTER SLOTS."""
    for first, last, primary, *_ in answer:
        if first <= slot <= last:
            host = primary[0].decode() if primary[0] else asked[0]
            return host, int(primary[1])
    return None
