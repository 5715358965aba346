"""Mailboxes on Redis."""

from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox import (
    CompositeResolver,
    InvalidParameterError,
    MailboxResolver,
    ReplyStore,
)
from weakincentives.runtime.mailbox.envelope import JsonSealer, Sealer
from weakincentives.runtime.mailbox.limits import check_name, check_positive
from weakincentives.runtime.mailbox.memory import check_max_size
from weakincentives.runtime.mailbox.typed import MailboxOptions, StoreMailbox
from weakincentives.serde import Codec

from .link import link_of
from .queue import Queue
from .replies import RedisReplyStore
from .store import AsyncRedisStore, RedisStore

__all__ = ["RedisMailbox", "RedisMailboxFactory"]

T = TypeVar("T")
R = TypeVar("R", default=None)


class RedisMailbox(StoreMailbox[T, R], Generic[T, R]):
    """A `Mailbox` on Redis 7.0 or newer, or Valkey: standalone, Sentinel or Cluster.

    ``client`` is a ``Redis`` or ``RedisCluster`` of ``redis``, or of ``redis.asyncio``: then only
    the ``_async`` methods work. Its settings are used, its connections are not. With
    ``min_replicas`` a send succeeds once that many replicas have the message.
    """

    def __init__(
        self,
        name: str,
        client: Any,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        reply_store: ReplyStore[Any] | None = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
        reaper_interval: float = 1.0,
        min_replicas: int = 0,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        if type(min_replicas) is not int or min_replicas < 0:
            raise InvalidParameterError(
                f"min_replicas must be a whole number from 0, not {min_replicas!r}"
            )
        link = link_of(client)
        queue = Queue(
            check_name(name),
            max_size=check_max_size(max_size),
            retention=None if default_ttl is None else check_positive("default_ttl", default_ttl),
            min_replicas=min_replicas,
        )
        look_interval = check_positive("reaper_interval", reaper_interval)
        store_class = AsyncRedisStore if link.topology.awaited else RedisStore
        store = store_class(link, queue, look_interval)

        def sealer_for(declared: Any) -> Sealer:
            return JsonSealer(Codec(declared), store.limits.max_bytes)

        if reply_resolver is None:
            reply_resolver = CompositeResolver(factory=RedisMailboxFactory(client))
        if reply_store is None:
            reply_store = RedisReplyStore(client)
        options = MailboxOptions(body_type, reply_type, reply_resolver, reply_store, dispatcher)
        super().__init__(store, sealer_for, options)
        link.join(self)

    def close(self) -> None:
        """End sending and receiving; the last mailbox of a client lets go of its connections."""
        super().close()
        self.store.link.leave(self)


class RedisMailboxFactory:
    """Makes mailboxes on one client; they share its connections."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, identifier: str) -> RedisMailbox[Any, None]:
        """Return a mailbox of this name."""
        return RedisMailbox(identifier, self._client)
