"""A cluster of shards, each a primary with replicas."""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisError

from testkit.ports import BUS_OFFSET, HOST
from testkit.waiting import eventually

from .redis import Server, Startable, fields

SLOTS = 16_384

_SETTLE_TIMEOUT = 120.0
_KEYS_PER_MIGRATE = 100


@dataclass(frozen=True)
class _Line:
    """A line of CLUSTER NODES: what one node believes of another."""

    id: str
    port: int
    flags: frozenset[str]
    primary_id: str
    slots: tuple[range, ...]

    @property
    def is_primary(self) -> bool:
        return self.primary_id == "-"

    @classmethod
    def parse(cls, line: str) -> "_Line":
        node_id, address, flags, primary_id, _, _, _, _, *slots = line.split()
        return cls(
            id=node_id,
            port=int(address.partition("@")[0].rpartition(":")[2]),
            flags=frozenset(flags.split(",")) - {"myself"},
            primary_id=primary_id,
            # In brackets are slots on the move, which are listed where they still belong as well.
            slots=tuple(_range(slot) for slot in slots if not slot.startswith("[")),
        )


class Cluster(Startable):
    """``primaries`` shards that share the slots evenly, each with ``replicas`` replicas.

    ``directives`` are configuration lines for every node.
    """

    def __init__(
        self,
        binary: Path,
        primaries: int = 3,
        replicas: int = 1,
        *,
        node_timeout: float = 1.0,
        directives: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.binary = binary
        self.shards: list[list[Server]] = []
        self._size = primaries
        self._replicas = replicas
        self._node_timeout = node_timeout
        self._primaries: set[Server] = set()
        self._elected_at: dict[Server, float] = {}
        self._directives = [
            "cluster-enabled yes",
            f"cluster-node-timeout {node_timeout * 1000:.0f}",
            # A replica stays with its shard, however long it has been cut off from its primary.
            "cluster-allow-replica-migration no",
            "cluster-replica-validity-factor 0",
            *directives,
        ]

    @property
    def nodes(self) -> list[Server]:
        """Every node, running or not."""
        return [node for shard in self.shards for node in shard]

    @property
    def startup_nodes(self) -> list[tuple[str, int]]:
        """Where the nodes listen."""
        return [(HOST, node.port) for node in self.nodes]

    def client(self, **options: Any) -> RedisCluster:
        """Return a client of the whole cluster."""
        nodes = [
            ClusterNode(host, port)  # type: ignore[no-untyped-call]
            for host, port in self.startup_nodes
        ]
        return RedisCluster(startup_nodes=nodes, **options)

    def node_for_key(self, key: str | bytes) -> Server:
        """Return the primary that holds a key's slot."""
        return self.node_for_slot(key_slot(key.encode() if isinstance(key, str) else key))

    def node_for_slot(self, slot: int) -> Server:
        """Return the primary that holds a slot."""
        return self._find(lambda line: any(slot in held for held in line.slots))

    def primary_of(self, node: Server) -> Server:
        """Return the primary of the shard that a node belongs to."""
        ports = {member.port for member in self._shard(node)}
        return self._find(
            lambda line: line.port in ports and line.is_primary and "fail" not in line.flags
        )

    def replicas_of(self, node: Server) -> list[Server]:
        """Return the other members of a node's shard, running or not."""
        return [member for member in self._shard(node) if member is not node]

    def kill(self, node: Server) -> None:
        """SIGKILL a node, without waiting for the failover."""
        node.kill()

    def failover(self, node: Server) -> Server:
        """Swap a primary for a replica of it; return the new primary once settled."""
        self.wait_until_settled()
        replica = next(member for member in self.replicas_of(node) if member.responsive)
        # Until it would have retried a lost election, Redis counts the votes of the one it won
        # anew: it promotes itself without a new epoch, takes writes, and is soon put right.
        retry = 2 * max(2 * self._node_timeout, 2.0)
        elected = self._elected_at.get(replica, -math.inf)
        eventually(
            lambda: time.monotonic() > elected + retry, retry + 1, f"{replica} to forget its votes"
        )
        replica.command("CLUSTER", "FAILOVER")
        return self.wait_for_failover(node)

    def wait_for_failover(self, old: Server, timeout: float = _SETTLE_TIMEOUT) -> Server:
        """Return the primary after ``old`` in its shard, once every responsive node follows it."""
        self._wait(lambda: self.primary_of(old) is not old, timeout, f"a failover from {old}")
        return self.primary_of(old)

    def revive(self, node: Server) -> None:
        """Resume or restart a node; return once it has its place again."""
        if node.paused:
            node.resume()
        elif not node.running:
            node.restart()
        self.wait_until_settled()

    def wait_until_settled(self, timeout: float = _SETTLE_TIMEOUT) -> None:
        """Wait until every responsive node is up, linked, and agrees with the others."""
        self._wait(lambda: True, timeout, "the cluster to settle")

    def migrate_slot(self, slot: int, target: Server) -> None:
        """Move a slot with its keys to another primary, while clients go on using both."""
        self.open_slot(slot, target)
        while self.move_keys(slot, target):
            pass
        self.close_slot(slot, target)

    def open_slot(self, slot: int, target: Server) -> None:
        """Begin a migration: from now on, the source answers ASK for the keys it does not have."""
        source = self.node_for_slot(slot)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))

    def move_keys(self, slot: int, target: Server, count: int = _KEYS_PER_MIGRATE) -> int:
        """Move up to ``count`` keys of an open slot; return how many were moved."""
        source = self.node_for_slot(slot)
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            source.command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def close_slot(self, slot: int, target: Server) -> None:
        """End a migration: the slot is the target's, and every node knows."""
        source = self.node_for_slot(slot)
        # The target first: were it the source, no node would own the slot if the target now died.
        for node in (target, source):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", _id(target))
        self._wait(
            lambda: self.node_for_slot(slot) is target,
            _SETTLE_TIMEOUT,
            f"slot {slot} to be at {target}",
        )

    def _start(self, resources: ExitStack) -> None:
        self.shards = [
            [
                resources.enter_context(
                    Server(self.binary, self._directives, port_offsets=(0, BUS_OFFSET))
                )
                for _ in range(1 + self._replicas)
            ]
            for _ in range(self._size)
        ]
        # Epochs that differ from the outset need no rounds of gossip to be told apart.
        for epoch, node in enumerate(self.nodes, start=1):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for index, (primary, *_) in enumerate(self.shards):
            first = SLOTS * index // self._size
            last = SLOTS * (index + 1) // self._size - 1
            primary.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        # Introducing everyone to everyone is quicker than leaving it to gossip.
        for one, other in combinations(self.nodes, 2):
            one.command("CLUSTER", "MEET", HOST, other.port)
        for primary, *replicas in self.shards:
            for replica in replicas:
                eventually(
                    partial(replica.command, "CLUSTER", "REPLICATE", _id(primary)),
                    _SETTLE_TIMEOUT,
                    f"{replica} to know {primary}",
                    ignoring=(RedisError,),
                )
        self._primaries = {shard[0] for shard in self.shards}
        self.wait_until_settled()

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait for a condition of the settled cluster, and note who has been elected since."""
        eventually(
            lambda: self._settled() and condition(),
            timeout,
            what,
            ignoring=(RedisError, LookupError),
        )
        primaries = {self.primary_of(shard[0]) for shard in self.shards}
        self._elected_at |= dict.fromkeys(primaries - self._primaries, time.monotonic())
        self._primaries = primaries

    def _settled(self) -> bool:
        nodes = self._responsive()
        ports = {node.port for node in nodes}
        beliefs = [
            {line.port: line for line in _lines(node) if line.port in ports} for node in nodes
        ]
        return (
            all(belief.keys() == ports and belief == beliefs[0] for belief in beliefs)
            and all(line.flags in ({"master"}, {"slave"}) for line in beliefs[0].values())
            and sum(line.is_primary for line in beliefs[0].values()) == len(self.shards)
            and all(_is_up(node) for node in nodes)
        )

    def _responsive(self) -> list[Server]:
        return [node for node in self.nodes if node.responsive]

    def _find(self, matches: Callable[[_Line], bool]) -> Server:
        """The first node to match, as one responsive node sees them."""
        for line in _lines(self._responsive()[0]):
            if matches(line):
                return next(node for node in self.nodes if node.port == line.port)
        raise LookupError("no node in the cluster is what was asked for")

    def _shard(self, node: Server) -> list[Server]:
        return next(shard for shard in self.shards if node in shard)


def _range(slots: str) -> range:
    first, _, last = slots.partition("-")
    return range(int(first), int(last or first) + 1)


def _lines(node: Server) -> list[_Line]:
    return [_Line.parse(line) for line in node.command("CLUSTER", "NODES").splitlines()]


def _id(node: Server) -> str:
    node_id: str = node.command("CLUSTER", "MYID")
    return node_id


def _is_up(node: Server) -> bool:
    """Whether a node takes commands and, if it is a replica, has a link to its primary."""
    up = fields(node.command("CLUSTER", "INFO"))["cluster_state"] == "ok"
    return up and node.info("replication").get("master_link_status", "up") == "up"
