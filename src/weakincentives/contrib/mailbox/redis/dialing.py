"""Gets connections that are ready for a command: connected, checked and with no answer unread."""

from typing import Any

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from weakincentives.clock import SystemClock
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import MailboxConnectionError

from .connection import PooledConnection, Transport
from .errors import code_of
from .pool import Node, Pool
from .resp import pack
from .server_check import check_server, parse_info
from .topology import Address, Topology, WatchedPrimary

__all__ = ["GRACE", "Dialer"]

logger = get_logger(__name__)

GRACE = 5.0
"""Seconds that a blocking command may take beyond its own timeout."""
INFO = pack(b"INFO")

monotonic = SystemClock.monotonic


class Dialer:
    """Gets connections to servers: from the pool, or new ones."""

    def __init__(self, topology: Topology, transport: Transport, pool: Pool) -> None:
        self._topology = topology
        self._transport = transport
        self._pool = pool

    async def ready(self, node: Node) -> PooledConnection:
        """Return a connection with no unread answers."""
        pooled = self._pool.take(node)
        if pooled is None:
            return await self._dial(node)
        if pooled.owed:
            try:
                await self._transport.await_answers(pooled, pooled.owed, GRACE, None)
            except BaseException:
                self._transport.drop(pooled)
                raise
            pooled.owed = 0
        return pooled

    async def ask(self, node: Node, packed: bytes) -> Any:
        """Send one command to one server and return its answer, without retries."""
        pooled = await self.ready(node)
        try:
            (answer,) = await self._transport.exchange(pooled, packed)
        except BaseException:
            self._transport.drop(pooled)
            raise
        self._pool.park(node, pooled)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def check(self, node: Node, pooled: PooledConnection) -> None:
        """Check the settings of a server; raise if it would lose messages."""
        (answer,) = await self._transport.exchange(pooled, INFO)
        node.checked = monotonic()
        if isinstance(answer, Exception):
            if code_of(answer) != "NOPERM":
                raise answer
            warning: str | None = "the user may not read INFO: server settings were not checked"
        else:
            try:
                warning = check_server(parse_info(answer))
            except MailboxConnectionError:
                node.checked = 0.0
                raise
        if warning and not node.warned:
            node.warned = True
            logger.warning("%s: %s", "redis" if node.address is None else node.address, warning)

    async def _dial(self, node: Node) -> PooledConnection:
        address, watch = node.address, self._topology.watch
        if watch is not None:
            address = await self._primary(watch, node)
        pooled = PooledConnection(
            self._topology.make(address), node.generation, self._transport.place(), node
        )
        try:
            await self._transport.connect(pooled)
        except BaseException:
            node.failed = monotonic()
            self._transport.drop(pooled)
            raise
        return pooled

    async def _primary(self, watch: WatchedPrimary, node: Node) -> Address:
        """Ask the sentinels in turn where the primary is; those that failed recently come last."""
        problem: Exception = LostConnection("the client knows no sentinel")
        for sentinel in sorted(watch.sentinels, key=lambda each: each.failed):
            pooled = PooledConnection(sentinel.make(), 0, self._transport.place(), node)
            try:
                await self._transport.connect(pooled)
                (answer,) = await self._transport.exchange(pooled, watch.question)
                return watch.primary_in(answer)
            except (RedisError, OSError) as error:
                sentinel.failed = monotonic()
                problem = error
            finally:
                self._transport.drop(pooled)
        raise LostConnection(
            f"no sentinel knows a primary of {watch.name!r}: {problem}"
        ) from problem
