"""Mailboxes on Redis."""

from typing import Any, Generic, Self

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox import InvalidParameterError, MailboxResolver, ReplyStore
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.seam.options import DEFAULT_TTL, QueueOptions

from .client import script_client
from .queue import Queue
from .replies import RedisReplyStore
from .store import RedisStore

__all__ = ["RedisMailbox", "RedisMailboxFactory"]

T = TypeVar("T")
R = TypeVar("R", default=None)


class RedisMailbox(StoreMailbox[T, R], Generic[T, R]):
    """A `Mailbox` on Redis 7.0 or newer, or Valkey: standalone, Sentinel or Cluster.

    ``client`` is a ``Redis`` or ``RedisCluster`` of ``redis``, or of ``redis.asyncio``: then only
    the ``_async`` methods work. The mailbox opens its own connections, with the client's settings.
    With ``min_replicas`` a send succeeds once that many replicas have the message. ``max_bytes`` is
    the size of the largest message (default: 1 MiB); senders, workers and callers who wait for
    replies should use the same value.
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
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
        reaper_interval: float = 1.0,
        min_replicas: int = 0,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        options = QueueOptions(
            *(body_type, reply_type, reply_resolver, reply_store, dispatcher),
            max_size=max_size,
            default_ttl=default_ttl,
            max_bytes=max_bytes,
            reaper_interval=reaper_interval,
        )
        self._set_up(name, client, options, min_replicas)

    @classmethod
    def _opened(cls, name: str, client: Any, options: QueueOptions, min_replicas: int) -> Self:
        """Make a mailbox from options that have been checked."""
        mailbox = cls.__new__(cls)
        mailbox._set_up(name, client, options, min_replicas)
        return mailbox

    def _set_up(self, name: str, client: Any, options: QueueOptions, min_replicas: int) -> None:
        if type(min_replicas) is not int or min_replicas < 0:
            raise InvalidParameterError(
                f"min_replicas must be a whole number from 0, not {min_replicas!r}"
            )
        scripts = script_client(client)
        queue = Queue(
            check_name(name),
            max_size=options.max_size,
            retention=options.default_ttl,
            min_replicas=min_replicas,
        )
        store = RedisStore(scripts, queue, options.reaper_interval)
        store.limits = options.limits
        factory = RedisMailboxFactory(client, max_bytes=options.max_bytes)
        options = options.with_defaults(factory, RedisReplyStore(client))
        super().__init__(store, options.json_sealer, options)
        self._pool = scripts.pool
        self._pool.join(self)

    def close(self) -> None:
        """Stop sending and receiving; the last mailbox of a client also closes its connections."""
        super().close()
        self._pool.leave(self)


class RedisMailboxFactory:
    """Makes mailboxes on one client; they share its connections."""

    def __init__(self, client: Any, *, max_bytes: int | None = None) -> None:
        self._client = client
        self._max_bytes = max_bytes

    def create(self, identifier: str) -> RedisMailbox[Any, None]:
        """Return a mailbox of this name."""
        return RedisMailbox(identifier, self._client, max_bytes=self._max_bytes)
