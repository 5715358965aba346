"""Mailboxes with a client of redis.asyncio, and a Backend whose calls are tasks of one loop."""

from typing import Any, Self

from testkit.redis_clients import close, from_url
from weakincentives.contrib.mailbox import RedisMailbox

__all__ = ["AwaitedBackend", "awaited_mailbox"]


def awaited_mailbox(url: str, name: str) -> RedisMailbox[Any, Any]:
    """Return a mailbox that has a client to itself."""
    client, replicas = from_url(url)
    return RedisMailbox(name, client, min_replicas=replicas)


class AwaitedBackend:
    """What scenarios need of a Backend: threads call its mailboxes, one event loop does it all."""

    def __init__(self, url: str) -> None:
        # Not at import: child processes have no need of what the contract brings along.
        from weakincentives.contrib.mailbox.contract.driver import Driver

        self.driver = Driver("async")
        self._client, self._replicas = from_url(url)

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
