"""Connections to the servers behind one client, kept for the next call."""

import os
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from weakincentives.runtime.mailbox.seam.step_threads import STEP_THREADS

from .connection import PooledConnection, Transport
from .topology import Address

__all__ = ["Node", "Pool"]

MOST_IDLE = 32
"""Connections kept for the next call, for each server."""

INHERITED: list[PooledConnection] = []
"""Connections of `redis.asyncio` that a forked child has found, and keeps for ever.

Once collected they would be closed, and closing one takes its socket out of the selector of its
event loop: in Linux that is shared with the parent, who would then hear no answer any more.
"""


class Node:
    """One server: its idle connections, and what is known of it."""

    def __init__(self, address: Address | None, *, warned: bool = False) -> None:
        self.address = address
        self.idle: deque[PooledConnection] = deque()
        self.generation = 0
        self.checked = 0.0
        self.failed = 0.0
        self.warned = warned


class Pool:
    """The servers of one client, which of them has which slot, and idle connections to them."""

    def __init__(self, transport: Transport, *, warned: bool = False) -> None:
        self._transport = transport
        self._warned = warned
        self._pid = os.getpid()
        self._keeps = True
        self.has_ended = False
        self.nodes: dict[Address | None, Node] = {}
        self.slots: dict[int, Node] = {}
        self.users: WeakSet[Any] = WeakSet()
        """The mailboxes that are open."""

    def node(self, address: Address | None) -> Node:
        """Return the server at an address."""
        return self.nodes.setdefault(address, Node(address, warned=self._warned))

    def known(self) -> list[Node]:
        """Return the servers known now: in one step, for other threads may add some meanwhile."""
        return list(self.nodes.values())

    def take(self, node: Node) -> PooledConnection | None:
        """Return an idle connection, if there is one."""
        if self._pid != os.getpid():
            self._begin_anew()
            return None
        idle = node.idle
        while idle:
            try:
                pooled = idle.pop()
            except IndexError:  # another thread was quicker
                return None
            if pooled.place is self._transport.place():
                return pooled
            self._transport.drop(pooled)
        return None

    def park(self, node: Node, pooled: PooledConnection) -> None:
        """Keep a connection for the next call."""
        if self._is_wanted(node, pooled) and len(node.idle) < MOST_IDLE:
            node.idle.append(pooled)
            # Another thread may have let go of the idle ones between the look and the append.
            if not self._is_wanted(node, pooled):
                self._drop_idle(node)
        else:
            self._transport.drop(pooled)

    def forget(self, slot: int) -> None:
        """Distrust what is known of the server of a slot."""
        node = self.slots.pop(slot, None)
        if node is not None:
            node.checked = 0.0
            self.clear(node)

    def clear(self, node: Node) -> None:
        """Let go of the idle connections to a server."""
        node.generation += 1
        self._drop_idle(node)

    def join(self, user: object) -> None:
        """Count one more mailbox that is open."""
        self.users.add(user)
        self._keeps = True

    def leave(self, user: object) -> None:
        """Count one less; the last one lets go of the connections."""
        self.users.discard(user)
        if not self.users:
            self.close()

    def close(self) -> None:
        """Let go of the connections that are not in use; a later call makes new ones.

        If no mailbox is open any more, connections that are in use now are not kept either, nor
        are threads.
        """
        self._keeps = bool(self.users)
        for node in self.known():
            self.clear(node)
            if not self._keeps:
                STEP_THREADS.release(node)
        if not self._keeps:
            STEP_THREADS.release(self)

    def end(self) -> None:
        """Let go of the connections, for good; calls that are under way may finish."""
        self.has_ended = True
        self.slots.clear()
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _is_wanted(self, node: Node, pooled: PooledConnection) -> bool:
        return self._keeps and pooled.generation == node.generation

    def _drop_idle(self, node: Node) -> None:
        # One by one, from the one deque that a node has: other threads use it meanwhile.
        while node.idle:
            try:
                pooled = node.idle.pop()
            except IndexError:  # another thread was quicker
                return
            self._transport.drop(pooled)

    def _begin_anew(self) -> None:
        """Leave the parent's connections alone: this process was forked from it."""
        self._pid = os.getpid()
        for node in self.known():
            idle, node.idle = node.idle, deque()
            node.generation += 1
            if self._transport.place() is not None:
                INHERITED.extend(idle)
