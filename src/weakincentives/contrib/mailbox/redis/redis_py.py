"""Everything that we use of redis-py beyond its documented interface.

It is all in this module, so that a new version of redis-py can break only one place:
``tests/backends/redis/test_redis_py.py`` checks every name on the oldest and the newest version.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import Any, TypeAlias

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.retry import Retry

from weakincentives.runtime.mailbox import InvalidParameterError, UnsupportedOperationError

from .topology import Address, Sentinel, Topology, WatchedPrimary

__all__ = ["close_now", "slot_of", "socket_of", "topology_of"]

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
SENTINEL_SECONDS = 1.0
"""The timeout of a sentinel unless the client sets one; short, because there are others to ask."""

WATCHED = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)

# Options that our own client replaces or does not need.
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

# The class of `redis` for each class of `redis.asyncio`.
IN_THREADS: dict[type, type] = {
    redis.asyncio.Connection: redis.Connection,
    redis.asyncio.SSLConnection: redis.SSLConnection,
    redis.asyncio.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
    redis.asyncio.sentinel.SentinelManagedConnection: redis.Connection,
    redis.asyncio.sentinel.SentinelManagedSSLConnection: redis.SSLConnection,
}

Connector: TypeAlias = Callable[..., Any]
"""Makes a connection that is not connected yet; the arguments are its address."""
Connect: TypeAlias = Callable[..., Connector]
"""Returns the connector of a client's pool or node."""


def topology_of(client: Any) -> Topology:
    """Return the topology of a client, by its type."""
    if isinstance(client, redis.RedisCluster):
        return _cluster(client.nodes_manager, partial(_sync_nodes, client), _as_made)
    if isinstance(client, redis.asyncio.RedisCluster):
        manager = client.nodes_manager
        return _with_threads(partial(_cluster, manager, partial(_async_nodes, manager)))
    if isinstance(client, redis.asyncio.Redis):
        return _with_threads(partial(_single, client.connection_pool))
    if isinstance(client, redis.Redis):
        return _single(client.connection_pool, _as_made)
    raise InvalidParameterError(
        "client must be a Redis or RedisCluster of redis or redis.asyncio, "
        f"not {type(client).__module__}.{type(client).__name__}"
    )


def slot_of(key: bytes) -> int:
    """Return the slot of a key."""
    return key_slot(key)


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection of `redis`, to wait until it is readable."""
    return connection._sock


def close_now(connection: Any) -> None:
    """Close a connection of `redis.asyncio` without awaiting; its event loop may be closed."""
    writer, connection._reader, connection._writer = connection._writer, None, None
    if writer is not None:
        with suppress(RuntimeError):
            writer.close()


def _with_threads(topology: Callable[[Connect], Topology]) -> Topology:
    """Return the topology of a client of `redis.asyncio`, which threads can use too."""
    as_made = topology(partial(_as_made, awaited=True))
    return replace(as_made, awaited=True, in_threads=partial(topology, _in_threads))


def _as_made(place: Any, patience: float = ANSWER_SECONDS, *, awaited: bool = False) -> Connector:
    """Return a connector that makes connections as the client's pool or node does."""
    kind = place.connection_class
    if isinstance(place, WATCHED):  # the connections of this pool ask the sentinels themselves
        package: Any = redis.asyncio if awaited else redis
        secure = issubclass(kind, package.SSLConnection)
        kind = package.SSLConnection if secure else package.Connection
    return partial(kind, **_options(place.connection_kwargs, awaited, patience))


def _in_threads(place: Any, patience: float = ANSWER_SECONDS) -> Connector:
    """Return a connector for `redis` with the settings of a pool or node of `redis.asyncio`.

    Raises `UnsupportedOperationError` if blocking connections do not support a setting.
    """
    kind = IN_THREADS.get(place.connection_class)
    if kind is None:
        name = place.connection_class.__qualname__
        raise _refusal(f"connections of the class {name}, which is not redis-py's own")
    given = {**_ssl_defaults(place.connection_class), **place.connection_kwargs}
    for name in ("parser_class", "encoder_class"):  # each kind of connection has its own
        chosen = given.pop(name, None)
        if chosen is not None and not chosen.__module__.startswith("redis."):
            raise _refusal(f"{name}={chosen.__qualname__}")
    provider = given.get("credential_provider")
    if provider is not None and not _gives_credentials(provider):
        raise _refusal(
            f"a credential_provider ({type(provider).__qualname__}) without get_credentials()"
        )
    make = partial(kind, **_options(given, awaited=False, patience=patience))
    try:
        make()
    except (TypeError, ValueError, redis.RedisError) as error:
        raise _refusal(f"settings that a blocking connection refuses ({error})") from error
    return make


def _refusal(what: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "leases are extended by a thread, over a blocking connection with the settings of the "
        f"asyncio client; this client has {what}"
    )


def _ssl_defaults(kind: type) -> dict[str, Any]:
    """Return the default values of a connection class's ``ssl_`` parameters."""
    parameters = signature(kind).parameters.values()
    return {each.name: each.default for each in parameters if each.name.startswith("ssl_")}


def _gives_credentials(provider: Any) -> bool:
    """Return whether a thread can ask this provider; it may implement only the async method."""
    ask = getattr(type(provider), "get_credentials", None)
    return ask not in (None, CredentialProvider.get_credentials) and not iscoroutinefunction(ask)


def _options(given: dict[str, Any], awaited: bool, patience: float) -> dict[str, Any]:
    """Return the options of our own connections: the client's, without its hidden retries."""
    options = {key: value for key, value in given.items() if key not in UNWANTED}
    no_retry = redis.asyncio.retry.Retry if awaited else Retry
    options["retry"] = no_retry(NoBackoff(), 0)
    options["decode_responses"] = False
    options["health_check_interval"] = 0
    options["protocol"] = 2
    # A server that hangs must not hang its clients, even if they set no timeout.
    if options.get("socket_timeout") is None:
        options["socket_timeout"] = patience
    if options.get("socket_connect_timeout") is None:
        options["socket_connect_timeout"] = min(options["socket_timeout"], CONNECT_SECONDS)
    return options


def _single(pool: Any, connect: Connect) -> Topology:
    if isinstance(pool, WATCHED):
        return _watched(pool, connect)
    make = connect(pool)
    return Topology(lambda address: make())


def _watched(pool: Any, connect: Connect) -> Topology:
    if not pool.is_master:
        raise InvalidParameterError(
            "client reads from replicas: make it with Sentinel.master_for(), not slave_for()"
        )
    manager = pool.sentinel_manager
    watch = WatchedPrimary(
        pool.service_name,
        [Sentinel(connect(own.connection_pool, SENTINEL_SECONDS)) for own in manager.sentinels],
        manager.min_other_sentinels,
        getattr(manager, "_force_master_ip", None),  # not in the oldest version
    )
    return Topology(_to_address(connect(pool)), watch=watch)


def _cluster(
    manager: Any, nodes: Callable[[], list[tuple[Address, Any]]], connect: Connect
) -> Topology:
    _, template = nodes()[0]

    def seeds() -> list[Address]:
        return [address for address, _ in nodes()]

    remap = getattr(manager, "remap_host_port", None)
    return Topology(
        _to_address(connect(template)),
        seeds=seeds,
        remap=None if remap is None else lambda at: remap(*at),
    )


def _to_address(make: Connector) -> Callable[[Address | None], Any]:
    def make_to(address: Address | None) -> Any:
        assert address is not None
        host, port = address
        return make(host=host, port=port)

    return make_to


def _sync_nodes(client: Any) -> list[tuple[Address, Any]]:
    return [
        ((node.host, int(node.port)), client.get_redis_connection(node).connection_pool)
        for node in client.get_nodes()
    ]


def _async_nodes(manager: Any) -> list[tuple[Address, Any]]:
    nodes = {**manager.startup_nodes, **manager.nodes_cache}
    return [((node.host, int(node.port)), node) for node in nodes.values()]
