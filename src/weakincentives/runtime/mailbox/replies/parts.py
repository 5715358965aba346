"""Parts of a reply that a handler emits while it is still at work."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from weakincentives.runtime.mailbox.envelope import Envelope, JsonSealer, ObjectSealer, Sealer
from weakincentives.runtime.mailbox.errors import PayloadTooLargeError
from weakincentives.runtime.mailbox.seam.reply_table import PartRow
from weakincentives.serde import Codec

__all__ = ["LARGEST_PART", "Part", "PartCodec"]

T = TypeVar("T")

LARGEST_PART = 64 * 1024
"""How many bytes a part may have."""


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A part of a reply."""

    value: T
    index: int
    """Counts the parts of the reply from 0, through all deliveries. A gap: parts were dropped."""
    delivery: int
    """Counts the starts of the job from 1, through replays too. Where it rises, the handler began
    again."""


class PartCodec:
    """Turns values into the payloads of parts and back."""

    def __init__(self, keeps_objects: bool, declared: Any = None) -> None:
        known = Any if declared is None else declared
        self._sealer: Sealer = (
            ObjectSealer() if keeps_objects else JsonSealer(Codec(known), LARGEST_PART)
        )

    def sealed(self, value: Any) -> Any:
        """Return a value as the table keeps it; raise if it cannot be encoded or is too large."""
        try:
            return self._sealer.seal(Envelope(value))
        except PayloadTooLargeError as error:
            raise PayloadTooLargeError(
                f"nothing was sent: a part may have {LARGEST_PART} bytes; emit a reference instead"
            ) from error

    def part(self, row: PartRow) -> Part[Any]:
        """Read a part."""
        value = self._sealer.body(self._sealer.open(row.payload))
        return Part(value, row.number, row.series)
