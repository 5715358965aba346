"""Clients of redis.asyncio: from a URL, and as a Backend whose every call is a task of one loop."""

from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis.asyncio
from redis.asyncio.sentinel import Sentinel
from tests.redis.clients import close

from weakincentives.contrib.mailbox import RedisMailbox

__all__ = ["AwaitedBackend", "awaited_mailbox", "client_of"]


def client_of(url: str) -> tuple[Any, int]:
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
    managed: Any = Sentinel(
        [(host, int(port)) for host, _, port in places], sentinel_kwargs={"socket_timeout": 1.0}
    )
    return managed.master_for(parts.path.strip("/")), replicas


def awaited_mailbox(url: str, name: str) -> RedisMailbox[Any, Any]:
    """Return a mailbox that has a client to itself."""
    client, replicas = client_of(url)
    return RedisMailbox(name, client, min_replicas=replicas)


class AwaitedBackend:
    """What scenarios need of a Backend: threads call its mailboxes, one event loop does it all."""

    def __init__(self, url: str) -> None:
        # Not at import: child processes have no need of what the contract brings along.
        from weakincentives.contrib.mailbox.contract.driver import Driver

        self.driver = Driver("async")
        self._client, self._replicas = client_of(url)

    def mailbox(self, name: str, **options: Any) -> RedisMailbox[Any, Any]:
        """Open a mailbox; only its ``_async`` methods work, `faced` adds the others."""
        return RedisMailbox(name, self._client, min_replicas=self._replicas, **options)

    def faced(self, mailbox: RedisMailbox[Any, Any]) -> Any:
        """Give a mailbox blocking methods, for threads: each awaits its twin."""
        from weakincentives.contrib.mailbox.contract.driver import Proxy

        return Proxy(mailbox, self.driver)

    def close(self) -> None:
        if not self.driver.loop.is_closed():
            self.driver.cancel_rest()
            self.driver.run(close(self._client))
            self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
