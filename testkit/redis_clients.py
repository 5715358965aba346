"""One client for each topology and kind of I/O, and how to close it."""

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis.asyncio
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel

from testkit.ports import HOST
from weakincentives.contrib.mailbox.redis.client import script_client


def standalone(server: Any, *, awaited: bool, **options: Any) -> Any:
    if awaited:
        return redis.asyncio.Redis(host=HOST, port=server.port, **options)
    return server.client(**options)


def sentinel(trio: Any, *, awaited: bool, **options: Any) -> Any:
    if not awaited:
        return trio.client(**options)
    return _managed(trio.sentinels).master_for(trio.service_name, **options)


def cluster(cluster: Any, *, awaited: bool, **options: Any) -> Any:
    if not awaited:
        return cluster.client(**options)
    nodes = [ClusterNode(host, port, **options) for host, port in cluster.startup_nodes]
    return redis.asyncio.RedisCluster(startup_nodes=nodes, **options)


def from_url(url: str) -> tuple[Any, int]:
    """Return a client of redis.asyncio for a URL, and the ``min_replicas`` that it asks for."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    replicas = int(query.pop("min_replicas", "0"))
    if parts.scheme == "redis":
        return redis.asyncio.from_url(parts._replace(query=urlencode(query)).geturl()), replicas
    if parts.scheme == "redis+cluster":
        return redis.asyncio.RedisCluster(host=str(parts.hostname), port=parts.port or 0), replicas
    assert parts.scheme == "redis+sentinel", url
    places = [place.rpartition(":") for place in parts.netloc.split(",")]
    managed = _managed([(host, int(port)) for host, _, port in places])
    return managed.master_for(parts.path.strip("/")), replicas


async def close(client: Any) -> None:
    """Close a client of redis.asyncio, and what we opened through it."""
    script_client(client).pool.close()
    await client.aclose()


def _managed(sentinels: list[tuple[str, int]]) -> Any:
    return Sentinel(  # type: ignore[no-untyped-call]
        sentinels, sentinel_kwargs={"socket_timeout": 1}
    )
