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
"""Connections of `redis.asyncio` that a forked child inherited. It never closes them.

Garbage collection would close them, and closing one removes its socket from the selector of its
event loop. On Linux the parent shares that selector, and would never see an answer again.
"""


class Node:
    """One server: its idle connections, and when it was last checked."""

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
        """Return a copy of the list of servers, because other threads may add some."""
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
            # Another thread may have closed the idle ones between the check and the append.
            if not self._is_wanted(node, pooled):
                self._drop_idle(node)
        else:
            self._transport.drop(pooled)

    def forget(self, slot: int) -> None:
        """Forget which server has a slot, and close the idle connections to it."""
        node = self.slots.pop(slot, None)
        if node is not None:
            node.checked = 0.0
            self.clear(node)

    def clear(self, node: Node) -> None:
        """Close the idle connections to a server."""
        node.generation += 1
        self._drop_idle(node)

    def join(self, user: object) -> None:
        """Count one more mailbox that is open."""
        self.users.add(user)
        self._keeps = True

    def leave(self, user: object) -> None:
        """Count one mailbox less; the last one closes the connections."""
        self.users.discard(user)
        if not self.users:
            self.close()

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones.

        If no mailbox is open, connections in use are closed after their call, and the threads end.
        """
        self._keeps = bool(self.users)
        for node in self.known():
            self.clear(node)
            if not self._keeps:
                STEP_THREADS.release(node)
        if not self._keeps:
            STEP_THREADS.release(self)

    def end(self) -> None:
        """Close the connections for good; calls in progress may finish."""
        self.has_ended = True
        self.slots.clear()
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _is_wanted(self, node: Node, pooled: PooledConnection) -> bool:
        return self._keeps and pooled.generation == node.generation

    def _drop_idle(self, node: Node) -> None:
        # One by one, because other threads use the same deque.
        while node.idle:
            try:
                pooled = node.idle.pop()
            except IndexError:  # another thread was quicker
                return
            self._transport.drop(pooled)

    def _begin_anew(self) -> None:
        """Start with no connections in a forked child, without closing the parent's."""
        self._pid = os.getpid()
        for node in self.known():
            idle, node.idle = node.idle, deque()
            node.generation += 1
            if self._transport.place() is not None:
                INHERITED.extend(idle)
