"""The options that every backend of this library takes, checked in one place."""

from dataclasses import dataclass, replace
from typing import Any, Self

from weakincentives.runtime.mailbox.envelope import JsonSealer, Sealer
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import Limits, check_positive, limits_with
from weakincentives.runtime.mailbox.mailbox import MailboxOptions
from weakincentives.runtime.mailbox.resolver import CompositeResolver, MailboxFactory
from weakincentives.serde import Codec

from .reply_table import ReplyStore

__all__ = ["DEFAULT_TTL", "QueueOptions"]

DEFAULT_TTL: float | None = None
"""The retention: seconds for which a message is kept, unless the mailbox says otherwise; None means
for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(MailboxOptions):
    """The options of a mailbox and of its queue; they are checked when the object is made."""

    max_size: int | None = None
    default_ttl: float | None = DEFAULT_TTL
    max_bytes: int | None = None
    reaper_interval: float = 1.0

    def __post_init__(self) -> None:
        size = self.max_size
        if size is not None and (type(size) is not int or size < 1):
            raise InvalidParameterError(f"max_size must be a whole number above 0, not {size!r}")
        if self.default_ttl is not None:
            check_positive("default_ttl", self.default_ttl)
        check_positive("reaper_interval", self.reaper_interval)
        limits_with(self.max_bytes)

    @property
    def limits(self) -> Limits:
        """The usual limits, with this ``max_bytes``."""
        return limits_with(self.max_bytes)

    def json_sealer(self, declared: Any) -> Sealer:
        """Return what writes bodies of a type as JSON of at most ``max_bytes``."""
        return JsonSealer(Codec(declared), self.limits.max_bytes)

    def with_defaults(self, factory: MailboxFactory | None, replies: ReplyStore[Any]) -> Self:
        """Use this factory and this reply store, unless the caller chose others."""
        resolver, store = self.reply_resolver, self.reply_store
        if resolver is None and factory is not None:
            resolver = CompositeResolver(factory=factory)
        return replace(
            self, reply_resolver=resolver, reply_store=replies if store is None else store
        )
