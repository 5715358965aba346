"""Which server has which slot, in a cluster and elsewhere."""

from typing import Any

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from weakincentives.clock import SystemClock

from .dialing import Dialer
from .pool import Node, Pool
from .resp import pack
from .topology import Address, Topology, owner_of

__all__ = ["Router"]

CLUSTER_SLOTS = pack(b"CLUSTER", b"SLOTS")

monotonic = SystemClock.monotonic


class Router:
    """Finds the server of a slot, and follows redirections."""

    def __init__(self, topology: Topology, pool: Pool, dialer: Dialer) -> None:
        self._topology = topology
        self._pool = pool
        self._dialer = dialer

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        return self._topology.seeds is not None

    async def primaries(self) -> list[Node]:
        """Return every server that holds keys."""
        if not self.is_cluster:
            return [self._pool.node(None)]
        answer, asked = await self._slots_answer()
        addresses = {owner_of(first, answer, asked) for first, *_ in answer}
        return [self._pool.node(self._remapped(address)) for address in addresses if address]

    async def find(self, slot: int) -> Node:
        """Return the server that has a slot."""
        if not self.is_cluster:
            node = self._pool.slots[slot] = self._pool.node(None)
            return node
        answer, asked = await self._slots_answer()
        address = owner_of(slot, answer, asked)
        if address is None:
            raise LostConnection(f"no node of the cluster serves slot {slot}")
        node = self._pool.slots[slot] = self._pool.node(self._remapped(address))
        return node

    def named(self, slot: int, address: Address) -> Node:
        """Return the server that a redirection names; without a host, the server that was asked."""
        host, port = address
        asked = self._pool.slots.get(slot)
        if not host and asked is not None and asked.address is not None:
            return self._pool.node((asked.address[0], port))
        return self._pool.node(self._remapped(address))

    async def _slots_answer(self) -> tuple[Any, Address]:
        """Ask the nodes in turn where the slots are; those that failed recently come last."""
        assert self._topology.seeds is not None
        known = {node.address for node in self._pool.known() if node.address is not None}
        addresses = known.union(self._topology.seeds())
        nodes = sorted(map(self._pool.node, addresses), key=lambda node: node.failed)
        problem: Exception = LostConnection("the client knows no node of the cluster")
        for node in nodes:
            try:
                answer = await self._dialer.ask(node, CLUSTER_SLOTS)
            except (RedisError, OSError) as error:
                node.failed = monotonic()
                problem = error
            else:
                assert node.address is not None
                return answer, node.address
        raise problem

    def _remapped(self, address: Address) -> Address:
        return address if self._topology.remap is None else self._topology.remap(address)
