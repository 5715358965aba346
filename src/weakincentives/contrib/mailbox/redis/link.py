"""Calls to the server that outlive its faults: connections, redirections and retries, once.

A call is a flow of steps on a `Wire`. Every script is safe to run twice, so a call whose answer
was lost is made again; it is told that it may be a repeat.
"""

import logging
import os
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from weakincentives.clock import SystemClock
from weakincentives.runtime.mailbox import MailboxClosedError, MailboxConnectionError
from weakincentives.runtime.mailbox.flow import Flow, drive

from .calls import INTERRUPTED, Block, Call, Outcome, Tries
from .faults import TRANSPORT, Cure, Verdict, code_of, verdict
from .packing import pack
from .server import check_server, parse_info
from .topology import Address, Topology, Watch, owner_of, topology_of
from .wire import AsyncWire, Held, SyncWire, Wire

__all__ = ["Link", "Node", "link_of"]

logger = logging.getLogger(__name__)

PATIENCE = 15.0
"""Seconds after the first fault during which a call is tried again."""
RECHECK = 30.0
"""Seconds after which a server's settings are looked at again."""
MOST_IDLE = 32
"""Connections kept for the next call, for each server."""
GRACE = 5.0
"""Seconds that a blocking command may take longer than it was told to."""
ATTRIBUTE = "_weakincentives_link"

ASKING, CLIENT_ID, INFO, TIME = (
    pack(b"ASKING"),
    pack(b"CLIENT", b"ID"),
    pack(b"INFO"),
    pack(b"TIME"),
)
CLUSTER_SLOTS = pack(b"CLUSTER", b"SLOTS")

monotonic = SystemClock.monotonic


class Node:
    """One server: its idle connections, and what is known of it."""

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.idle: deque[Held] = deque()
        self.generation = 0
        self.checked = 0.0
        self.failed = 0.0
        self.warned = False


class Link:
    """The way from one client to its servers, shared by all that use the client."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.wire: Wire = AsyncWire() if topology.awaited else SyncWire()
        self._pid = os.getpid()
        self._keeps = True
        self._ended = False
        self._nodes: dict[Address | None, Node] = {}
        self._slots: dict[int, Node] = {}
        self.users: WeakSet[Any] = WeakSet()
        """The mailboxes that are open on this link."""

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        return self.topology.seeds is not None

    def run(self, slot: int, call: Call) -> Outcome:
        """Run a script in this thread: in one exchange, as nearly always, or as `call` does."""
        node = self._slots.get(slot)
        if node is None or call.then is not None or monotonic() - node.checked > RECHECK:
            return drive(self.call(slot, call))
        held = self._take(node)
        if held is None or held.owed:
            if held is not None:
                self._park(node, held)
            return drive(self.call(slot, call))
        connection = held.connection
        try:
            connection.send_packed_command([call.packed()])
            answer = connection.read_response()
        except ResponseError:
            self._park(node, held)
            return drive(self.call(slot, call))  # which judges the error when it comes again
        except TRANSPORT:
            self.wire.drop(held)
            self._clear(node)
            return drive(self.call(slot, call, repeated=True))
        except BaseException:
            self.wire.drop(held)
            raise
        self._park(node, held)
        return Outcome(answer)

    def call(
        self, slot: int, call: Call, block: Block | None = None, *, repeated: bool = False
    ) -> Flow[Outcome]:
        """Run a script where the slot is, again after faults until patience is over."""
        tries = Tries(block, PATIENCE, repeated=repeated)
        while True:
            fault: Exception | None
            try:
                answers = yield from self._attempt(slot, call, tries)
            except (RedisError, OSError) as error:
                fault = error
            else:
                if answers is None:
                    return INTERRUPTED
                fault = next((a for a in answers if isinstance(a, Exception)), None)
                if fault is None:
                    return Outcome(answers[0], answers[-1], tries.repeated, tries.began)
            judged = verdict(fault)
            pause = tries.note(fault, judged)
            self._reroute(slot, judged, tries)
            if pause:
                yield self.wire.pause(pause, tries.interrupt)
            if tries.interrupt is not None and tries.interrupt.is_set:
                return INTERRUPTED

    def post(self, slot: int, call: Call) -> Flow[None]:
        """Send a script on its way; its answer is read before the connection's next use."""
        node = self._slots.get(slot)
        held = None if node is None else self._take(node)
        if node is None or held is None:
            yield from self.call(slot, call)
            return
        try:
            yield self.wire.send(held, call.packed())
        except BaseException as error:
            self.wire.drop(held)
            if isinstance(error, TRANSPORT):
                raise MailboxConnectionError(f"it may not have been sent: {error}") from error
            raise
        held.owed += 1
        self._park(node, held)

    def ask(self, node: "Node", packed: bytes) -> Flow[Any]:
        """Send one harmless command to one server, without retries."""
        held = yield from self._ready(node)
        try:
            (answer,) = yield self.wire.exchange(held, packed)
        except BaseException:
            self.wire.drop(held)
            raise
        self._park(node, held)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def primaries(self) -> Flow[list[Node]]:
        """Return every server that holds keys."""
        if not self.is_cluster:
            return [self._node(None)]
        answer, asked = yield from self._slots_answer()
        addresses = {owner_of(first, answer, asked) for first, *_ in answer}
        return [self._node(self._remapped(address)) for address in addresses if address]

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

        If no mailbox is open any more, connections that are in use now are not kept either.
        """
        self._keeps = bool(self.users)
        for node in self._nodes.values():
            self._clear(node)

    def end(self) -> None:
        """Let go of the connections, for good."""
        self._ended = True
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _attempt(self, slot: int, call: Call, tries: Tries) -> Flow[list[Any] | None]:
        """Make the call once; None if it was interrupted."""
        node = tries.asked or self._slots.get(slot) or (yield from self._find(slot))
        held = yield from self._ready(node)
        try:
            if monotonic() - node.checked > RECHECK:
                yield from self._check(node, held)
            packed = call.packed_again(as_text=tries.as_text, repeated=tries.repeated)
            answers: list[Any] | None
            if tries.block is not None:
                answers = yield from self._block(node, held, tries.block, packed, tries)
            else:
                if tries.asked is not None:
                    yield self.wire.exchange(held, ASKING)
                count = 1
                if call.then is not None:
                    packed, count = packed + call.then, 2
                answers = yield self.wire.exchange(held, packed, count)
        except BaseException as error:
            if isinstance(error, Exception) and verdict(error).unknown:
                tries.repeated = True
            self.wire.drop(held)
            raise
        if answers is not None:
            self._park(node, held)
        return answers

    def _reroute(self, slot: int, judged: Verdict, tries: Tries) -> None:
        if judged.cure is Cure.GO and judged.address is not None:
            self._slots[slot] = self._node(judged.address)
        elif judged.cure is Cure.ASK and judged.address is not None:
            tries.asked = self._node(judged.address)
        elif judged.cure is Cure.SEEK:
            self._forget(slot)

    def _node(self, address: Address | None) -> Node:
        return self._nodes.setdefault(address, Node(address))

    def _take(self, node: Node) -> Held | None:
        if self._pid != os.getpid():
            self._begin_anew()
            return None
        idle = node.idle
        while idle:
            try:
                held = idle.pop()
            except IndexError:  # another thread was quicker
                return None
            if held.place is self.wire.place():
                return held
            self.wire.drop(held)
        return None

    def _begin_anew(self) -> None:
        """Leave the parent's connections alone: this process was forked from it."""
        self._pid = os.getpid()
        for node in self._nodes.values():
            node.idle = deque()
            node.generation += 1

    def _park(self, node: Node, held: Held) -> None:
        fresh = held.generation == node.generation
        if fresh and self._keeps and len(node.idle) < MOST_IDLE:
            node.idle.append(held)
        else:
            self.wire.drop(held)

    def _ready(self, node: Node) -> Flow[Held]:
        """Return a connection on which nothing is under way."""
        held = self._take(node)
        if held is None:
            return (yield from self._dial(node))
        if held.owed:
            try:
                yield self.wire.await_answers(held, held.owed, GRACE, None)
            except BaseException:
                self.wire.drop(held)
                raise
            held.owed = 0
        return held

    def _dial(self, node: Node) -> Flow[Held]:
        if self._ended:
            raise MailboxClosedError("its backend was closed")
        address, watch = node.address, self.topology.watch
        if watch is not None:
            address = yield from self._primary(watch)
        held = Held(self.topology.make(address), node.generation, self.wire.place())
        try:
            yield self.wire.connect(held)
        except BaseException:
            node.failed = monotonic()
            self.wire.drop(held)
            raise
        return held

    def _primary(self, watch: Watch) -> Flow[Address]:
        """Ask one sentinel after the other where the primary is, those that failed lately last."""
        problem: Exception = LostConnection("the client knows no sentinel")
        for sentinel in sorted(watch.sentinels, key=lambda each: each.failed):
            held = Held(sentinel.make(), 0, self.wire.place())
            try:
                yield self.wire.connect(held)
                (answer,) = yield self.wire.exchange(held, watch.question)
                return watch.primary_in(answer)
            except (RedisError, OSError) as error:
                sentinel.failed = monotonic()
                problem = error
            finally:
                self.wire.drop(held)
        raise LostConnection(f"no sentinel knows a primary of {watch.name!r}: {problem}")

    def _check(self, node: Node, held: Held) -> Flow[None]:
        (answer,) = yield self.wire.exchange(held, INFO)
        node.checked = monotonic()
        if isinstance(answer, Exception):
            if code_of(answer) != "NOPERM":
                raise answer
            warning: str | None = "the user may not read INFO: the server's settings are unchecked"
        else:
            try:
                warning = check_server(parse_info(answer))
            except MailboxConnectionError:
                node.checked = 0.0
                raise
        if warning and not node.warned:
            node.warned = True
            logger.warning("%s: %s", "redis" if node.address is None else node.address, warning)

    def _block(
        self, node: Node, held: Held, block: Block, packed: bytes, tries: Tries
    ) -> Flow[list[Any] | None]:
        """Wait and run the script, in one write; None if interrupted."""
        wire = self.wire
        if held.client_id is None:
            (answer,) = yield wire.exchange(held, CLIENT_ID)
            held.client_id = answer if isinstance(answer, int) else 0
        if block.timed:
            at = monotonic()
            (clock,) = yield wire.exchange(held, TIME)
            tries.began = at, int(clock[0]) + int(clock[1]) / 1e6
        if block.interrupt is not None and block.interrupt.is_set:
            self._park(node, held)
            return None
        yield wire.send(held, block.command + packed)
        seconds = block.seconds + GRACE
        answers = yield wire.await_answers(held, 2, seconds, block.interrupt)
        if answers is None:
            answers = yield from self._unblock(node, held)
        if answers is None:
            wire.drop(held)
            return None
        waited, answer = answers
        return [
            waited if isinstance(waited, Exception) and isinstance(answer, Exception) else answer
        ]

    def _unblock(self, node: Node, held: Held) -> Flow[list[Any] | None]:
        """End the wait in progress at the server, so that what it leased meanwhile is not lost."""
        for _ in range(5 if held.client_id else 0):
            try:
                yield from self.ask(node, pack(b"CLIENT", b"UNBLOCK", held.client_id))
                answers: list[Any] = yield self.wire.await_answers(held, 2, 0.2, None)
                return answers
            except NoAnswer:
                continue  # it had not begun to wait yet
            except (RedisError, OSError):
                return None
        return None

    def _find(self, slot: int) -> Flow[Node]:
        """Return the server that has a slot."""
        if not self.is_cluster:
            node = self._slots[slot] = self._node(None)
            return node
        answer, asked = yield from self._slots_answer()
        address = owner_of(slot, answer, asked)
        if address is None:
            raise LostConnection(f"no node of the cluster serves slot {slot}")
        node = self._slots[slot] = self._node(self._remapped(address))
        return node

    def _slots_answer(self) -> Flow[tuple[Any, Address]]:
        """Ask one node after the other where the slots are, those that failed lately last."""
        assert self.topology.seeds is not None
        addresses = {*self.topology.seeds(), *(a for a in self._nodes if a is not None)}
        nodes = sorted(map(self._node, addresses), key=lambda node: node.failed)
        problem: Exception = LostConnection("the client knows no node of the cluster")
        for node in nodes:
            try:
                answer = yield from self.ask(node, CLUSTER_SLOTS)
            except (RedisError, OSError) as error:
                node.failed = monotonic()
                problem = error
            else:
                assert node.address is not None
                return answer, node.address
        raise problem

    def _remapped(self, address: Address) -> Address:
        return address if self.topology.remap is None else self.topology.remap(address)

    def _forget(self, slot: int) -> None:
        """Distrust what is known of the server of a slot."""
        node = self._slots.pop(slot, None)
        if node is not None:
            node.checked = 0.0
            self._clear(node)

    def _clear(self, node: Node) -> None:
        node.generation += 1
        idle, node.idle = node.idle, deque()
        for held in idle:
            self.wire.drop(held)


def link_of(client: Any) -> Link:
    """Return the link of a client: one for all mailboxes that share it, gone when it is."""
    known: Link | None = getattr(client, ATTRIBUTE, None)
    if known is not None:
        return known
    link = Link(topology_of(client))
    # setdefault, because two threads may come with the same client at once.
    return client.__dict__.setdefault(ATTRIBUTE, link)  # type: ignore[no-any-return]
