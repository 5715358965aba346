"""What a caller is told of a job that has failed; it travels in the reply's envelope."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.runtime.mailbox.envelope import Envelope
from weakincentives.runtime.mailbox.errors import ReplyFailedError

__all__ = ["NO_VALUE", "Failed", "failed_error", "has_value"]

NO_VALUE: Any = object()


@dataclass(frozen=True, slots=True)
class Failed:
    """How a job failed for good, and the value that ``error_reply`` returned for it, if any."""

    error_type: str
    reference: str
    dead_letter_id: str | None = None
    detail: str | None = None
    value: Any = NO_VALUE

    @property
    def has_value(self) -> bool:
        """Whether ``error_reply`` has made a value of it, which the caller gets."""
        return self.value is not NO_VALUE

    def without_value(self) -> "Failed":
        """Return the same failure without the value, which cannot be stored."""
        return replace(self, value=NO_VALUE)

    def envelope(self) -> Envelope:
        """Return what the reply table keeps, not sealed yet."""
        facts = {"error_type": self.error_type, "reference": self.reference}
        if self.dead_letter_id is not None:
            facts["dead_letter_id"] = self.dead_letter_id
        if self.detail is not None:
            facts["detail"] = self.detail
        if not self.has_value:
            return Envelope(None, attributes=facts)
        return Envelope(self.value, attributes={**facts, "value": "yes"})


def has_value(envelope: Envelope) -> bool:
    """Return whether a failed reply has a value, which its caller gets."""
    return bool(envelope.attributes and envelope.attributes.get("value"))


def failed_error(reply_id: str, envelope: Envelope) -> ReplyFailedError:
    """Return the error that the caller of a failed reply gets."""
    facts: Mapping[str, str] = envelope.attributes or {}
    return ReplyFailedError(
        reply_id,
        error_type=facts.get("error_type", "unknown"),
        reference=facts.get("reference", ""),
        dead_letter_id=facts.get("dead_letter_id"),
        detail=facts.get("detail"),
    )
