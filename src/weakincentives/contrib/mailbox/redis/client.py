"""Runs scripts on the servers, and repeats calls that failed.

Every script is safe to run twice, so a call whose answer was lost is repeated; an argument tells
the script that it may be a repeat.
"""

from typing import Any

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswer

from weakincentives.clock import SystemClock
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import MailboxClosedError, MailboxConnectionError

from .connection import (
    AsyncTransport,
    Interrupt,
    LoopTransport,
    PooledConnection,
    ThreadTransport,
    Transport,
)
from .dialing import GRACE, Dialer
from .errors import TRANSPORT, Cure, Verdict, code_of, verdict
from .pool import Node, Pool
from .redis_py import topology_of
from .resp import pack
from .retries import RetryState
from .routing import Router
from .script_call import INTERRUPTED, Block, Call, Outcome
from .topology import Topology
from .wrong_types import renaming_call

__all__ = ["Node", "ScriptClient", "script_client"]

logger = get_logger(__name__)

RECHECK = 30.0
"""Seconds after which a server's settings are checked again."""
UNWAITED_SECONDS = 0.1
"""Seconds between two calls if the server refuses to block until there is a message."""
ATTRIBUTE = "_weakincentives_client"

ASKING, CLIENT_ID, TIME = pack(b"ASKING"), pack(b"CLIENT", b"ID"), pack(b"TIME")

monotonic = SystemClock.monotonic


class ScriptClient:
    """Runs scripts on the servers of one client, for all mailboxes that share the client."""

    def __init__(self, topology: Topology, transport: Transport, pool: Pool) -> None:
        self.topology = topology
        self.transport = transport
        self.pool = pool
        self.dialer = Dialer(topology, transport, pool)
        self.router = Router(topology, pool, self.dialer)
        self.servers: object = pool if self.router.is_cluster else pool.node(None)
        """Identifies the servers behind the client: queues with the same key may hang together."""
        self._in_threads: ScriptClient | None = None

    def in_threads(self) -> "ScriptClient":
        """Return a client for threads to the same servers, with its own connections.

        It does not warn about a server's settings, because this one does. Raises
        `UnsupportedOperationError` if a setting of the client is only for event loops.
        """
        if self.topology.in_threads is None:
            return self
        if self._in_threads is None:
            transport = ThreadTransport()
            self._in_threads = ScriptClient(
                self.topology.in_threads(), transport, Pool(transport, warned=True)
            )
        return self._in_threads

    def in_loop(self) -> "ScriptClient":
        """Return a client of the same servers that event loops can use without blocking."""
        transport = self.transport if self.topology.awaited else LoopTransport()
        return ScriptClient(self.topology, transport, self.pool)

    def server_of(self, slot: int) -> object:
        """Return the key of the server that has a slot, or of all servers if it is unknown."""
        return self.pool.slots.get(slot, self.pool) if self.router.is_cluster else self.servers

    async def call(self, slot: int, call: Call, block: Block | None = None) -> Outcome:
        """Run a script on the server that has the slot; if the first try fails, retry it."""
        node = self.pool.slots.get(slot)
        if (
            node is None
            or block is not None
            or call.then is not None
            or monotonic() - node.checked > RECHECK
            or (pooled := self.pool.take(node)) is None
        ):
            return await self._call_patiently(slot, call, RetryState(block))
        try:
            # What was posted before is answered first.
            answers = await self.transport.exchange(pooled, call.packed(), 1 + pooled.owed)
        except TRANSPORT:
            self.transport.drop(pooled)
            self.pool.clear(node)
            return await self._call_patiently(slot, call, RetryState(None, repeated=True))
        except BaseException:
            self.transport.drop(pooled)
            raise
        pooled.owed = 0
        self.pool.park(node, pooled)
        answer = answers[-1]
        if isinstance(answer, Exception):  # the retry decides what it means
            return await self._call_patiently(slot, call, RetryState(None))
        return Outcome(answer)

    async def _call_patiently(self, slot: int, call: Call, state: RetryState) -> Outcome:
        """Run a script, and retry it after faults until `RETRY_SECONDS` are over."""
        while True:
            if state.is_interrupted:
                return INTERRUPTED
            if self.pool.has_ended:
                raise MailboxClosedError("its backend was closed")
            fault: Exception | None
            try:
                answers = await self._attempt(slot, call, state)
            except (RedisError, OSError) as error:
                fault = error
            else:
                if answers is None:
                    return INTERRUPTED
                fault = next((a for a in answers if isinstance(a, Exception)), None)
                if fault is None:
                    state.succeed()
                    return Outcome(
                        answers[0], answers[-1], state.repeated, state.began, bool(state.refusal)
                    )
            judged = verdict(fault)
            if judged.cure is Cure.MEND and (await self._mend(slot, call, state)):
                state.repeated = True
                continue
            pause = state.note(fault, judged)
            self._reroute(slot, judged, state)
            if pause:
                await self.transport.pause(pause, state.interrupt)

    async def pause_unwaited(self, most: float, interrupt: Interrupt | None = None) -> None:
        """Pause on the client's side because the server refused to block: it is out of memory, or
        the user lacks the permission."""
        await self.transport.pause(min(most, UNWAITED_SECONDS), interrupt)

    async def post(self, slot: int, call: Call, *, as_text: bool = False) -> bool:
        """Send a script without waiting for its answer; False if no connection is idle.

        The answer is read before the connection is used again. Pass ``as_text`` if the server may
        not have the script yet: nobody would see the error that says so.
        """
        node = self.pool.slots.get(slot)
        pooled = None if node is None else self.pool.take(node)
        if node is None or pooled is None:
            return False
        try:
            await self.transport.send(pooled, call.packed_again(as_text=as_text, repeated=False))
        except BaseException as error:
            self.transport.drop(pooled)
            if isinstance(error, TRANSPORT):
                raise MailboxConnectionError(f"it may not have been sent: {error}") from error
            raise
        pooled.owed += 1
        self.pool.park(node, pooled)
        return True

    async def _attempt(self, slot: int, call: Call, state: RetryState) -> list[Any] | None:
        """Make the call once; None if it was interrupted."""
        node = state.asked or self.pool.slots.get(slot) or (await self.router.find(slot))
        pooled = await self.dialer.ready(node)
        try:
            if monotonic() - node.checked > RECHECK:
                await self.dialer.check(node, pooled)
            asked = state.asked is not None
            packed = call.packed_again(
                as_text=state.as_text, repeated=state.repeated, one_key=asked
            )
            answers: list[Any] | None
            if state.block is not None:
                answers = await self._block(node, pooled, state.block, packed, state)
            else:
                if asked:
                    await self.transport.exchange(pooled, ASKING)
                count = 1
                if call.then is not None:
                    packed, count = packed + call.then, 2
                answers = await self.transport.exchange(pooled, packed, count)
        except BaseException as error:
            if isinstance(error, Exception) and verdict(error).may_have_run:
                state.repeated = True
            self.transport.drop(pooled)
            raise
        if answers is not None:
            self.pool.park(node, pooled)
        if state.refusal == "WRONGTYPE":
            await self._mend(slot, call, state)
        return answers

    async def _mend(self, slot: int, call: Call, state: RetryState) -> bool:
        """Rename keys of the wrong type that another program wrote; False if there are none."""
        if state.mended:
            return False
        state.mended = True
        renamed = (await self.call(slot, renaming_call(call.head))).answer
        if renamed:
            names = ", ".join(name.decode("ascii", "replace") for name in renamed)
            logger.warning("keys of the wrong type were renamed; they are now %s", names)
        return bool(renamed)

    def _reroute(self, slot: int, judged: Verdict, state: RetryState) -> None:
        if judged.address is not None:
            named = self.router.named(slot, judged.address)
            if judged.cure is Cure.GO:
                self.pool.slots[slot] = named
            else:
                state.asked = named
        elif judged.cure is Cure.SEEK:
            self.pool.forget(slot)

    async def _block(
        self, node: Node, pooled: PooledConnection, block: Block, packed: bytes, state: RetryState
    ) -> list[Any] | None:
        """Send the blocking command and the script in one write; None if interrupted."""
        transport = self.transport
        if pooled.client_id is None:
            (answer,) = await transport.exchange(pooled, CLIENT_ID)
            if isinstance(answer, Exception) and code_of(answer) != "NOPERM":
                raise answer
            pooled.client_id = answer if isinstance(answer, int) else 0
        if block.timed:
            at = monotonic()
            (clock,) = await transport.exchange(pooled, TIME)
            if isinstance(clock, Exception):
                raise clock
            state.began = at, int(clock[0]) + int(clock[1]) / 1e6
        if block.interrupt is not None and block.interrupt.is_set:
            self.pool.park(node, pooled)
            return None
        asking, count = b"", 2
        if state.asked is not None:
            # ASKING is needed before each command. Its answer comes at once, so the first is read
            # here: it would look like the end of the wait.
            await transport.exchange(pooled, ASKING)
            asking, count = ASKING, 3
        await transport.send(pooled, block.command + asking + packed)
        seconds = block.seconds + GRACE
        answers = await transport.await_answers(pooled, count, seconds, block.interrupt)
        if answers is None:
            answers = await self._unblock(node, pooled, count)
        if answers is None:
            transport.drop(pooled)
            return None
        waited, answer = answers[0], answers[-1]
        if not isinstance(waited, Exception):
            return [answer]
        state.refusal = code_of(waited)
        is_judged = isinstance(answer, Exception) and verdict(answer).cure is not Cure.LOAD
        return [waited if is_judged else answer]

    async def _unblock(self, node: Node, pooled: PooledConnection, count: int) -> list[Any] | None:
        """Make the server end the wait, and return its answers: they may contain leases."""
        for _ in range(5 if pooled.client_id else 0):
            try:
                await self.dialer.ask(node, pack(b"CLIENT", b"UNBLOCK", pooled.client_id))
            except (RedisError, OSError):
                return None  # a server that does not answer this answers nothing else
            try:
                return await self.transport.await_answers(pooled, count, 0.2, None)
            except NoAnswer:
                continue  # it had not begun to wait yet
            except (RedisError, OSError):
                return None
        return None


def script_client(client: Any) -> ScriptClient:
    """Return the `ScriptClient` of a client; all mailboxes on that client share it."""
    known: ScriptClient | None = getattr(client, ATTRIBUTE, None)
    if known is not None:
        return known
    topology = topology_of(client)
    transport: Transport = AsyncTransport() if topology.awaited else ThreadTransport()
    made = ScriptClient(topology, transport, Pool(transport))
    # setdefault, because two threads may do this for the same client at once.
    return client.__dict__.setdefault(ATTRIBUTE, made)  # type: ignore[no-any-return]
