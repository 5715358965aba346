"""What a loop and its user agree on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox import InvalidParameterError

from .backoff import Backoff
from .lease_extender import LeaseExtenderConfig

if TYPE_CHECKING:
    from .dlq import DLQPolicy

__all__ = ["Failure", "Terms", "WorkerConfig"]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a loop works."""

    concurrency: int = 1
    """How many jobs run at once, each in a thread."""
    batch: int = 1
    """How many messages a thread takes at a time. More is faster for short jobs; a finished one
    is then acknowledged with the others of its batch."""
    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    backoff: Backoff = field(default_factory=Backoff)
    """The wait before a failed job is tried again."""
    error_detail: Literal["type", "text"] = "type"
    """What senders are told of an error: its type, or its text as well."""
    dispatcher: Dispatcher | None = None
    """Who is told of events; by default the mailbox's own."""
    failure_log: str = "Message handling failed"

    def __post_init__(self) -> None:
        for name, value in (("concurrency", self.concurrency), ("batch", self.batch)):
            if type(value) is not int or not 1 <= value <= 1000:
                raise InvalidParameterError(
                    f"{name} must be a whole number from 1 to 1000, not {value!r}"
                )
        if self.error_detail not in ("type", "text"):
            raise InvalidParameterError(
                f"error_detail must be 'type' or 'text', not {self.error_detail!r}"
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the sender is told of it."""

    message_id: str
    text: str
    """The error's type and a reference; its own text only if the loop's config says so."""
    reference: str
    """Stands in the log beside the whole error."""
    error: BaseException
    body: Any = None
    """What was sent; None if it could not be read."""
    request_id: Any = None
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What one loop agreed on with its user."""

    error_reply: Callable[[Failure], Any] | None
    responses: Any
    dlq: "DLQPolicy[Any, Any] | None"
    backoff: Backoff
    error_detail: Literal["type", "text"]
    failure_log: str
    dispatcher: Dispatcher | None
