"""A reply table with its value type, for the caller's handle and the worker's channel."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from weakincentives.runtime.mailbox.class_check import class_check
from weakincentives.runtime.mailbox.envelope import Envelope, JsonSealer, ObjectSealer, Sealer
from weakincentives.runtime.mailbox.errors import UnsupportedOperationError
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow, ReplyState, ReplyTable
from weakincentives.runtime.mailbox.seam.step_threads import hop
from weakincentives.serde import Codec

from .failure import Failed, has_value

__all__ = ["DEFAULT_LIMITS", "TypedReplyTable"]

V = TypeVar("V")

DEFAULT_LIMITS = Limits()


class TypedReplyTable:
    """A reply table, and the type of its values: it turns values into payloads and back."""

    def __init__(
        self,
        table: ReplyTable,
        declared: Any = Any,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> None:
        self.table = table
        self.declared = declared
        self._check = class_check(declared, "reply_type")
        known = Any if declared in (None, type(None)) else declared
        self.sealer: Sealer = (
            ObjectSealer() if table.keeps_objects else JsonSealer(Codec(known), max_bytes)
        )

    def run(self, method: str, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Run a coroutine over the table in this thread."""
        if self.table.steps == "awaited":
            raise UnsupportedOperationError(
                f"these replies can be read only in an event loop: use {method}_async() instead"
            )
        return run(make)

    async def run_async(self, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Await a coroutine over the table, in another thread if its steps would block."""
        return await (hop(make, self.table) if self.table.steps == "blocking" else make())

    def sealed(self, value: Any) -> Any:
        """Return a value as the table keeps it; raise if it does not fit the declared type.

        A `Failed` is no such value, but may have one.
        """
        if isinstance(value, Failed):
            if self._check is not None and value.has_value:
                self._check.require(value.value)
            return self.sealer.seal(value.envelope())
        if self._check is not None:
            self._check.require(value)
        return self.sealer.seal(Envelope(value))

    def value(self, row: ReplyRow) -> Any:
        """Decode the value of a resolved row."""
        return self.sealer.body(self.sealer.open(row.payload))

    def value_of(self, row: ReplyRow) -> Any:
        """Return the value of a row, also the one that ``error_reply`` made; None without one."""
        if row.state == ReplyState.RESOLVED:
            return self.value(row)
        if row.state == ReplyState.FAILED and has_value(self.sealer.open(row.payload)):
            return self.value(row)
        return None
