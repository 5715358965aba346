"""The backend of ``redis://`` URLs: makes a client from the URL, and mailboxes on that client."""

from typing import Any
from urllib.parse import SplitResult, unquote, urlencode

import redis
from redis.exceptions import RedisClusterException
from redis.sentinel import Sentinel

from weakincentives.contrib.mailbox.urls import SECRET_OPTION, max_bytes_of, options_of, redacted
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import InvalidParameterError, MailboxConnectionError
from weakincentives.runtime.mailbox.queue_names import is_name
from weakincentives.runtime.mailbox.seam.backend import BaseBackend
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.options import QueueOptions

from .client import ScriptClient, script_client
from .mailbox import RedisMailbox
from .pauses import RedisPauseTable
from .replies import RedisReplyStore
from .resp import pack
from .workers import RedisWorkerTable

__all__ = ["RedisBackend", "open_backend"]

logger = get_logger(__name__)

SCAN_COUNT = 1000
# The options of redis-py's URLs that our own connections support, and two of ours.
OPTIONS = {
    *("client_name", "db", "encoding", "encoding_errors", "health_check_interval", "lib_name"),
    *("lib_version", "max_bytes", "max_connections", "min_replicas", "password", "protocol"),
    *("retry_on_timeout", "socket_connect_timeout", "socket_keepalive", "socket_read_size"),
    *("socket_timeout", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs"),
    *("ssl_certfile", "ssl_check_hostname", "ssl_ciphers", "ssl_keyfile", "ssl_min_version"),
    *("ssl_password", "username"),
}
SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}
DATA_KEY = (b"{queue:", b"}:data")


class RedisBackend(BaseBackend[RedisMailbox[Any, Any], RedisReplyStore[Any]]):
    """The mailboxes of one client; closing the backend closes the client too."""

    def __init__(
        self, url: str, client: Any, min_replicas: int = 0, max_bytes: int | None = None
    ) -> None:
        super().__init__(redacted(url), RedisReplyStore(client), max_bytes)
        self._client = client
        self._min_replicas = min_replicas

    def queues(self) -> list[str]:
        """List the queues that hold messages; this scans the names of all keys."""
        self._check_open()
        try:
            return run(lambda: _queues(script_client(self._client)))
        except (redis.RedisError, OSError) as error:
            raise MailboxConnectionError(f"{self._place}: {error}") from error

    def _worker_table(self) -> RedisWorkerTable:
        return RedisWorkerTable(script_client(self._client))

    def _pause_table(self) -> RedisPauseTable:
        return RedisPauseTable(script_client(self._client))

    def _open(self, name: str, options: QueueOptions) -> RedisMailbox[Any, Any]:
        return RedisMailbox._opened(name, self._client, options, self._min_replicas)

    def _disconnect(self) -> None:
        script_client(self._client).pool.end()
        self._client.close()


async def _queues(client: ScriptClient) -> list[str]:
    first, last = DATA_KEY
    names: set[str] = set()
    for node in await client.router.primaries():
        cursor: Any = b"0"
        while True:
            match = (b"MATCH", first + b"*" + last, b"TYPE", b"hash")
            command = pack(b"SCAN", cursor, *match, b"COUNT", SCAN_COUNT)
            cursor, keys = await client.dialer.ask(node, command)
            names.update(key[len(first) : -len(last)].decode("utf-8", "replace") for key in keys)
            if int(cursor) == 0:
                break
    strange = sorted(name for name in names if not is_name(name))
    if strange:
        logger.warning("ignored keys whose names cannot be names of queues: %s", strange[:10])
    return sorted(names.difference(strange))


def open_backend(url: str, parts: SplitResult) -> RedisBackend:
    """Open a ``redis`` URL of any topology.

    After ``?`` it may have ``min_replicas``, ``max_bytes`` and options of redis-py's connections;
    for Sentinels also ``sentinel_username`` and ``sentinel_password``.
    """
    _check_quoting(url, parts)
    secure, _, kind = parts.scheme.partition("+")
    known = OPTIONS | SENTINEL_OPTIONS if kind == "sentinel" else OPTIONS
    query = options_of(url, parts.query, known)
    max_bytes = max_bytes_of(query)
    replicas = query.pop("min_replicas", "0")
    if not _is_number(replicas):
        raise InvalidParameterError(f"min_replicas must be a whole number from 0, not {replicas!r}")
    opener = {"": _standalone, "sentinel": _sentinel, "cluster": _cluster}[kind]
    try:
        client = opener(url, secure, parts, query)
    except (redis.RedisError, RedisClusterException) as error:
        raise MailboxConnectionError(f"{redacted(url)}: {error}") from error
    except InvalidParameterError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        raise InvalidParameterError(f"{redacted(url)}: {error}") from error
    return RedisBackend(url, client, int(replicas), max_bytes)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _check_quoting(url: str, parts: SplitResult) -> None:
    """Refuse a URL in which an unquoted character cuts the password short.

    The rest of the password would be taken for a host or a port, and error messages show those.
    """
    cut = "@" not in parts.netloc and "@" in SECRET_OPTION.sub("", f"{parts.path}?{parts.query}")
    if cut or parts.fragment:
        raise InvalidParameterError(
            f"{redacted(url)}: in a user name, a password or an option write # as %23, ? as %3F, "
            "/ as %2F and @ as %40"
        )


def _standalone(url: str, secure: str, parts: SplitResult, query: dict[str, str]) -> Any:
    database = parts.path.strip("/")
    if database and not _is_number(database):
        raise InvalidParameterError(
            f"{redacted(url)}: the database must be a number, as in redis://host:port/0"
        )
    return redis.Redis.from_url(_plain(secure, parts.netloc, parts.path, query))


def _cluster(url: str, secure: str, parts: SplitResult, query: dict[str, str]) -> Any:
    if parts.path.strip("/"):
        raise InvalidParameterError(f"{redacted(url)}: a cluster has no databases, drop the path")
    return redis.RedisCluster.from_url(_plain(secure, parts.netloc, "", query))


def _sentinel(url: str, secure: str, parts: SplitResult, query: dict[str, str]) -> Any:
    master, _, database = parts.path.strip("/").partition("/")
    credentials, _, places = parts.netloc.rpartition("@")
    if not master or (database and not _is_number(database)):
        raise InvalidParameterError(
            f"{redacted(url)}: write redis+sentinel://host:port,host:port/master/database"
        )
    asking: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
    for name in ("username", "password"):
        if f"sentinel_{name}" in query:
            asking[name] = query.pop(f"sentinel_{name}")
    # redis-py reads the options of a connection from a URL, whatever the topology.
    netloc = f"{credentials}@sentinel" if credentials else "sentinel"
    plain = redis.ConnectionPool.from_url(_plain(secure, netloc, database, query))
    options = {
        key: value
        for key, value in plain.connection_kwargs.items()
        if key in {*query, "username", "password", "db"}
    }
    if secure == "rediss":
        options["ssl"] = True
        asking |= {"ssl": True} | {k: v for k, v in options.items() if k.startswith("ssl_")}
    managed: Any = Sentinel  # redis-py gives its Sentinel no types
    sentinel = managed([_address(place) for place in places.split(",")], sentinel_kwargs=asking)
    return sentinel.master_for(unquote(master), **options)


def _plain(secure: str, netloc: str, path: str, query: dict[str, str]) -> str:
    path = path if path.startswith("/") else f"/{path}"
    return f"{secure}://{netloc}{path}" + (f"?{urlencode(query)}" if query else "")


def _address(place: str) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = place, "26379"
    if not host.strip("[]") or not _is_number(port) or not 0 < int(port) < 65536:
        raise InvalidParameterError(
            f"{place!r:.100} is not the address of a Sentinel; write host:port, "
            "with a port from 1 to 65535"
        )
    return host.strip("[]"), int(port)
