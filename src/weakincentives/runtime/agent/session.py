"""The session of one request: its resources, its budget and what it has used."""

from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID, uuid4

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.budget import Budget, Usage

__all__ = ["Session"]

V = TypeVar("V")


class Session:
    """One run of one request: its id, its live resources and what it has used."""

    def __init__(
        self, *, session_id: UUID | None = None, dispatcher: Dispatcher | None = None
    ) -> None:
        self.session_id = session_id if session_id is not None else uuid4()
        self.dispatcher = dispatcher
        self.resources: Mapping[type[object], object] = {}
        self.budget: Budget | None = None
        self.usage = Usage()

    def spend(self, *, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
        """Record what an adapter has used; raise `BudgetExceededError` if it is too much."""
        self.usage = self.usage.plus(Usage(input_tokens, output_tokens, cost))
        if self.budget is not None:
            self.budget.check(self.usage)

    def resource(self, kind: type[V]) -> V:
        """Return the live object of this type; raise LookupError if there is none."""
        try:
            return self.resources[kind]  # type: ignore[return-value]
        except KeyError:
            raise LookupError(
                f"there is no resource of type {kind.__name__}: pass resources= "
                f"to the loop, its config or the request"
            ) from None

    def __repr__(self) -> str:
        return f"<Session {self.session_id}>"
