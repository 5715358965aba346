"""One client for each topology and kind of I/O, and how to close it."""

from typing import Any

import redis.asyncio
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel

from weakincentives.contrib.mailbox.redis.link import link_of

HOST = "127.0.0.1"


def standalone(server: Any, *, awaited: bool, **options: Any) -> Any:
    if awaited:
        return redis.asyncio.Redis(host=HOST, port=server.port, **options)
    return server.client(**options)


def sentinel(trio: Any, *, awaited: bool, **options: Any) -> Any:
    if not awaited:
        return trio.client(**options)
    managed: Any = Sentinel(trio.sentinels, sentinel_kwargs={"socket_timeout": 1})
    return managed.master_for(trio.service_name, **options)


def cluster(cluster: Any, *, awaited: bool, **options: Any) -> Any:
    if not awaited:
        return cluster.client(**options)
    nodes = [ClusterNode(host, port, **options) for host, port in cluster.startup_nodes]
    return redis.asyncio.RedisCluster(startup_nodes=nodes, **options)


async def close(client: Any) -> None:
    """Close a client of redis.asyncio, and what we opened through it."""
    link_of(client).close()
    await client.aclose()
