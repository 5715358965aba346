"""Looks for what will hurt in the settings and the state of a Redis server."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import redis

from weakincentives.contrib.mailbox.finding import Finding
from weakincentives.runtime.mailbox import MailboxConnectionError

from .backend import RedisBackend

__all__ = ["findings"]

OLDEST = (7, 0)
PINGS = 20
SLOW_SECONDS = 0.005
SKEWED_SECONDS = 1.0
NEARLY_FULL = 0.8
MOST_LAG_SECONDS = 10

PROBES = (
    *("hset KEY a b", "lpush KEY a", "zadd KEY 1 a", "xadd KEY * a b", "xread streams KEY 0"),
    *("blmove KEY KEY left left 1", "bzpopmin KEY 1", "evalsha 0 1 KEY", "info", "time"),
    *("wait 0 0", "client id", "client unblock 0"),
)
"""A command for each permission that docs/redis.md lists; none of them is run."""
ASK_PERMISSIONS = """
local refused = {}
for _, probe in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(probe, '%S+') do
    words[#words + 1] = word == 'KEY' and KEYS[1] or word
  end
  if not redis.acl_check_cmd(unpack(words)) then refused[#refused + 1] = probe end
end
return refused
"""
PROBED_KEYS = ("{queue:doctor}:data", "{replies:doctor}")


def findings(
    backend: RedisBackend, url: str, queues: Callable[[], Sequence[str]]
) -> Iterator[Finding]:
    """Yield what will hurt, for each primary."""
    for name, node in _primaries(backend._client):
        try:
            info: dict[str, Any] = node.info("everything")
        except redis.exceptions.NoPermissionError:
            yield Finding(
                "warning",
                "the server's settings cannot be checked",
                f"{name}: this user may not run INFO",
                "allow +info",
            )
            info = {}
        except (redis.RedisError, OSError) as error:
            raise MailboxConnectionError(f"{name}: {error}") from error
        yield from _of_settings(name, info)
        yield from _of_replicas(name, info, backend)
        yield from _of_permissions(name, node)
        yield from _of_time(name, node)


def _primaries(client: Any) -> Iterator[tuple[str, Any]]:
    cluster: Any = client  # redis-py gives its clusters no types
    if isinstance(client, redis.RedisCluster):
        for node in cluster.get_primaries():
            yield f"{node.host}:{node.port}", client.get_redis_connection(node)
    else:
        options = client.connection_pool.connection_kwargs
        yield f"{options.get('host', 'the primary')}:{options.get('port', '')}".strip(":"), client


def _of_settings(name: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    if not info:
        return
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        yield Finding(
            "error",
            "the server is too old",
            f"{name} is Redis {version}",
            "upgrade to Redis 7.0 or newer, or to Valkey",
        )
    yield from _of_memory(name, info)
    yield from _of_files(name, info)
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and clients > NEARLY_FULL * most:
        yield Finding(
            "warning",
            "the server has nearly no connections left",
            f"{name}: {clients} of {most} clients are connected",
            "raise maxclients, or run fewer processes",
        )


def _of_memory(name: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = info.get("maxmemory_policy", "noeviction")
    if limit and policy != "noeviction":
        yield Finding(
            "error",
            "the server evicts messages when its memory is full",
            f"{name}: maxmemory-policy is {policy}",
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
        )
    if limit and used > NEARLY_FULL * limit:
        yield Finding(
            "warning",
            "the server's memory is nearly full; then sends are refused",
            f"{name} uses {used:,} of {limit:,} bytes",
            "raise maxmemory, or find the queue that grows with wink stats",
        )


def _of_files(name: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    if int(info.get("aof_enabled", 1)) == 0:
        yield Finding(
            "error",
            "messages are lost when the server stops",
            f"{name} has no append-only file",
            "CONFIG SET appendonly yes, and the same in its configuration file",
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            "error",
            "the server cannot write its append-only file",
            f"{name}: aof_last_write_status is {info['aof_last_write_status']}",
            "look for a full disk or missing rights where the server keeps its files",
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Finding(
            "error",
            "the server cannot save its data, and may refuse every write",
            f"{name}: rdb_last_bgsave_status is {info['rdb_last_bgsave_status']}",
            "look for a full disk or missing rights where the server keeps its files",
        )


def _of_replicas(name: str, info: Mapping[str, Any], backend: RedisBackend) -> Iterator[Finding]:
    if not info:
        return
    replicas = [info[f"slave{n}"] for n in range(int(info.get("connected_slaves", 0)))]
    needed = backend._min_replicas
    if info.get("role") == "slave":
        yield Finding(
            "error",
            "this server is a replica, which takes no messages",
            f"{name} follows {info.get('master_host')}:{info.get('master_port')}",
            "use the URL of the primary, or redis+sentinel://",
        )
    if len(replicas) < needed:
        yield Finding(
            "error",
            "sends fail, because there are too few replicas",
            f"{name} has {len(replicas)} replicas, and the URL says min_replicas={needed}",
            "start the missing replicas, or lower min_replicas",
        )
    elif not replicas and not _is_alone(backend._client):
        yield Finding(
            "warning",
            "no server can take over if the primary fails",
            f"{name} has no replica",
            "add a replica",
        )
    for replica in replicas:
        lag = int(replica.get("lag", 0))
        if replica.get("state") != "online" or lag > MOST_LAG_SECONDS:
            yield Finding(
                "warning",
                "a replica is behind, and a failover to it would lose messages",
                f"{replica.get('ip')}:{replica.get('port')}: {replica.get('state')}, {lag} s late",
                "look at the replica's log and at the network between them",
            )


def _is_alone(client: Any) -> bool:
    """Return whether the URL names one server, for which nobody promised a replica."""
    return not isinstance(client, redis.RedisCluster) and not hasattr(
        client.connection_pool, "sentinel_manager"
    )


def _of_permissions(name: str, node: Any) -> Iterator[Finding]:
    refused: set[str] = set()
    keys: set[str] = set()
    for key in PROBED_KEYS:
        try:
            answer = node.eval(ASK_PERMISSIONS, 1, key, *PROBES)
        except redis.exceptions.NoPermissionError as error:
            (keys if "key" in str(error) else refused).add(key if "key" in str(error) else "eval")
            continue
        except redis.RedisError:
            return  # it is busy or loading: the queues will say so
        refused.update(_command(one) for one in answer)
    if refused or keys:
        may_not = ", ".join(sorted(refused | keys))
        yield Finding(
            "error",
            "this user may not do what mailboxes need",
            f"{name}: no permission for {may_not}",
            "ACL SETUSER with the permissions that docs/redis.md lists",
        )


def _command(probe: bytes | str) -> str:
    """Return the command of a probe, with its subcommand."""
    words = (probe.decode() if isinstance(probe, bytes) else probe).split()
    return "|".join(words[:2]) if words[0] == "client" else words[0]


def _of_time(name: str, node: Any) -> Iterator[Finding]:
    fastest, skew = float("inf"), 0.0
    for _ in range(PINGS):
        sent, began = time.time(), time.perf_counter()
        try:
            seconds, microseconds = node.time()
        except redis.RedisError:
            return
        took = time.perf_counter() - began
        if took < fastest:  # the least disturbed answer tells the most
            fastest, skew = took, seconds + microseconds / 1e6 - (sent + took / 2)
    if fastest > SLOW_SECONDS:
        yield Finding(
            "warning",
            "the server is slow to answer",
            f"{name}: the fastest of {PINGS} round trips took {1000 * fastest:.1f} ms",
            "run workers near the server, and look for slow commands with SLOWLOG GET",
        )
    if abs(skew) > SKEWED_SECONDS + fastest:
        yield Finding(
            "warning",
            "the clocks of this machine and the server differ",
            f"{name} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}",
            "synchronise both with NTP: times and ages that people see are wrong until then",
        )
