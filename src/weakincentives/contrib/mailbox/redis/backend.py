"""The backend of ``redis://`` and its kin: from a URL to a client, and its mailboxes."""

from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode
from weakref import WeakSet

from redis.exceptions import RedisClusterException
from redis.sentinel import Sentinel

import redis
from weakincentives.contrib.mailbox.urls import redacted
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxResolver,
)
from weakincentives.runtime.mailbox.flow import Flow, drive

from .link import Link, link_of
from .mailbox import RedisMailbox
from .packing import pack
from .replies import RedisReplyStore

__all__ = ["RedisBackend", "open_backend"]

SCAN_COUNT = 1000
DATA_KEY = (b"{queue:", b"}:data")


class RedisBackend:
    """Mailboxes on the servers behind one client, which closes with it."""

    def __init__(self, url: str, client: Any, min_replicas: int = 0) -> None:
        self._url = redacted(url)
        self._client = client
        self._min_replicas = min_replicas
        self._mailboxes: WeakSet[RedisMailbox[Any, Any]] = WeakSet()
        self._replies: RedisReplyStore[Any] = RedisReplyStore(client)
        self._closed = False

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
    ) -> RedisMailbox[Any, Any]:
        """Open the mailbox of this name."""
        if self._closed:
            raise MailboxClosedError(f"{self!r} was closed")
        made: RedisMailbox[Any, Any] = RedisMailbox(
            name,
            self._client,
            body_type=body_type,
            reply_type=reply_type,
            reply_resolver=reply_resolver,
            reply_store=self._replies,
            max_size=max_size,
            default_ttl=default_ttl,
            min_replicas=self._min_replicas,
        )
        self._mailboxes.add(made)
        return made

    def queues(self) -> list[str]:
        """List the queues that hold messages, by a walk over the names of all keys."""
        try:
            return drive(_queues(link_of(self._client)))
        except (redis.RedisError, OSError) as error:
            raise MailboxConnectionError(f"{self._url}: {error}") from error

    def reply_store(self) -> RedisReplyStore[Any]:
        """Return the store in which callers of `send_expecting_reply` wait."""
        return self._replies

    def create(self, identifier: str) -> RedisMailbox[Any, None]:
        """Open a mailbox that was told no types, as resolvers do."""
        return self.mailbox(identifier)

    def close(self) -> None:
        """Close every mailbox opened here and every connection."""
        self._closed = True
        for mailbox in list(self._mailboxes):
            mailbox.close()
        link_of(self._client).end()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RedisBackend {self._url}>"


def _queues(link: Link) -> Flow[list[str]]:
    first, last = DATA_KEY
    names: set[str] = set()
    for node in (yield from link.primaries()):
        cursor: Any = b"0"
        while True:
            command = pack(b"SCAN", cursor, b"MATCH", b"{queue:*}:data", b"COUNT", SCAN_COUNT)
            cursor, keys = yield from link.ask(node, command)
            names.update(key[len(first) : -len(last)].decode() for key in keys)
            if int(cursor) == 0:
                break
    return sorted(names)


def open_backend(url: str, parts: SplitResult) -> RedisBackend:
    """Open a ``redis`` URL of any topology.

    Options of redis-py's connections may follow after ``?``, and ``min_replicas``; for Sentinels
    also ``sentinel_username`` and ``sentinel_password``.
    """
    query = dict(parse_qsl(parts.query))
    replicas = query.pop("min_replicas", "0")
    if not replicas.isdigit():
        raise InvalidParameterError(f"min_replicas must be a whole number from 0, not {replicas!r}")
    secure, _, kind = parts.scheme.partition("+")
    opener = {"": _standalone, "sentinel": _sentinel, "cluster": _cluster}[kind]
    try:
        client = opener(url, secure, parts, query)
    except (redis.RedisError, RedisClusterException) as error:
        raise MailboxConnectionError(f"{redacted(url)}: {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{redacted(url)}: {error}") from error
    return RedisBackend(url, client, int(replicas))


def _standalone(url: str, secure: str, parts: SplitResult, query: dict[str, str]) -> Any:
    database = parts.path.strip("/")
    if database and not database.isdigit():
        raise InvalidParameterError(
            f"{redacted(url)}: the database is a number, as in redis://host:port/0"
        )
    return redis.Redis.from_url(_plain(secure, parts.netloc, parts.path, query))


def _cluster(url: str, secure: str, parts: SplitResult, query: dict[str, str]) -> Any:
    if parts.path.strip("/"):
        raise InvalidParameterError(f"{redacted(url)}: a cluster has no databases, drop the path")
    return redis.RedisCluster.from_url(_plain(secure, parts.netloc, "", query))


def _sentinel(url: str, secure: str, parts: SplitResult, query: dict[str, str]) -> Any:
    master, _, database = parts.path.strip("/").partition("/")
    credentials, _, places = parts.netloc.rpartition("@")
    if not master or (database and not database.isdigit()):
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
        return place.strip("[]"), 26379
    return host.strip("[]"), int(port)
