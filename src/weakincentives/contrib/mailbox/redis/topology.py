"""Where a client's servers are and how to reach them, told from the client's type."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as LostConnection
from redis.retry import Retry

import redis
from weakincentives.runtime.mailbox import InvalidParameterError

from .packing import pack

__all__ = ["Address", "Sentinel", "Topology", "Watch", "owner_of", "slot_of", "topology_of"]

Address: TypeAlias = tuple[str, int]

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
SENTINEL_SECONDS = 1.0
"""For a sentinel, unless the client says otherwise: there are others to ask."""

WATCHED = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)

# What these do for a pool of connections is done here by the link, or is of no use to it.
UNWANTED = (
    "cache",
    "connection_pool",
    "himport_registry",
    "legacy_responses",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "redis_connect_func",
    "response_callbacks",
    "retry_on_error",
    "retry_on_timeout",
)


@dataclass(frozen=True, slots=True)
class Topology:
    """How to make connections, and in a cluster, whom to ask where a slot is."""

    make: Callable[[Address | None], Any]
    """Return a new connection, not connected yet; to an address of a cluster, or to the one."""
    awaited: bool
    """The connections are those of `redis.asyncio`."""
    seeds: Callable[[], Sequence[Address]] | None = None
    """Known addresses of a cluster; None where there is one server at a time."""
    remap: Callable[[Address], Address] | None = None
    """How the client translates the addresses that a cluster announces."""
    watch: "Watch | None" = None
    """Whom to ask where the one server is, if there are sentinels."""


@dataclass(slots=True)
class Sentinel:
    """One of those who know where the primary is."""

    make: Callable[[], Any]
    """Return a new connection to it, not connected yet."""
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class Watch:
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


def topology_of(client: Any) -> Topology:
    """Tell the topology from the type of the client."""
    if isinstance(client, redis.RedisCluster):
        return _cluster(client, _sync_nodes, awaited=False)
    if isinstance(client, redis.asyncio.RedisCluster):
        return _cluster(client, _async_nodes, awaited=True)
    if isinstance(client, redis.Redis | redis.asyncio.Redis):
        return _single(client, isinstance(client, redis.asyncio.Redis))
    raise InvalidParameterError(
        "client must be a Redis or RedisCluster of redis or redis.asyncio, "
        f"not {type(client).__module__}.{type(client).__name__}"
    )


def slot_of(key: bytes) -> int:
    """Return the slot of a key."""
    return key_slot(key)


def owner_of(slot: int, answer: Any, asked: Address) -> Address | None:
    """Read the primary of a slot from the answer of a node to CLUSTER SLOTS."""
    for first, last, primary, *_ in answer:
        if first <= slot <= last:
            host = primary[0].decode() if primary[0] else asked[0]
            return host, int(primary[1])
    return None


def _options(
    given: dict[str, Any], awaited: bool, patience: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """Return how our own connections are made: as the client's, without its hidden retries."""
    options = {key: value for key, value in given.items() if key not in UNWANTED}
    no_retry = redis.asyncio.retry.Retry if awaited else Retry
    options["retry"] = no_retry(NoBackoff(), 0)
    options["decode_responses"] = False
    options["health_check_interval"] = 0
    options["protocol"] = 2
    # A server that hangs must not hang its clients, whatever the client's own patience.
    if options.get("socket_timeout") is None:
        options["socket_timeout"] = patience
    if options.get("socket_connect_timeout") is None:
        options["socket_connect_timeout"] = min(options["socket_timeout"], CONNECT_SECONDS)
    return options


def _single(client: Any, awaited: bool) -> Topology:
    pool = client.connection_pool
    if isinstance(pool, WATCHED):
        return _watched(pool, awaited)
    options = _options(pool.connection_kwargs, awaited)

    def make(address: Address | None) -> Any:
        return pool.connection_class(**options)

    return Topology(make, awaited)


def _watched(pool: Any, awaited: bool) -> Topology:
    if not pool.is_master:
        raise InvalidParameterError(
            "client reads from replicas: make it with Sentinel.master_for(), not slave_for()"
        )
    options = _options(pool.connection_kwargs, awaited)
    package: Any = redis.asyncio if awaited else redis
    secure = issubclass(pool.connection_class, package.SSLConnection)
    connection_class = package.SSLConnection if secure else package.Connection

    def make(address: Address | None) -> Any:
        assert address is not None
        host, port = address
        return connection_class(**{**options, "host": host, "port": port})

    def sentinel(own: Any) -> Sentinel:
        given = _options(own.connection_kwargs, awaited, SENTINEL_SECONDS)
        return Sentinel(partial(own.connection_class, **given))

    manager = pool.sentinel_manager
    watch = Watch(
        pool.service_name,
        [sentinel(each.connection_pool) for each in manager.sentinels],
        manager.min_other_sentinels,
        getattr(manager, "_force_master_ip", None),
    )
    return Topology(make, awaited, watch=watch)


def _cluster(
    client: Any, nodes_of: Callable[[Any], list[tuple[Address, Any]]], *, awaited: bool
) -> Topology:
    _, template = nodes_of(client)[0]
    options = _options(template.connection_kwargs, awaited)

    def make(address: Address | None) -> Any:
        assert address is not None
        host, port = address
        return template.connection_class(**{**options, "host": host, "port": port})

    def seeds() -> list[Address]:
        return [address for address, _ in nodes_of(client)]

    remap = getattr(client.nodes_manager, "remap_host_port", None)
    return Topology(make, awaited, seeds, None if remap is None else lambda at: remap(*at))


def _sync_nodes(client: Any) -> list[tuple[Address, Any]]:
    return [
        ((node.host, int(node.port)), client.get_redis_connection(node).connection_pool)
        for node in client.get_nodes()
    ]


def _async_nodes(client: Any) -> list[tuple[Address, Any]]:
    manager = client.nodes_manager
    nodes = {**manager.startup_nodes, **manager.nodes_cache}
    return [((node.host, int(node.port)), node) for node in nodes.values()]
