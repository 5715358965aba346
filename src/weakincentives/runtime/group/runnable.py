"""What a group needs from a loop."""

from typing import Protocol, runtime_checkable

from weakincentives.runtime.heartbeat import Heartbeat

__all__ = ["Runnable"]


@runtime_checkable
class Runnable(Protocol):
    """A loop that a group can run, stop and watch."""

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve until `shutdown`, or for ``max_iterations`` receives.

        After a shutdown it returns at once.
        """
        ...

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop for good and interrupt a waiting receive; return True if all work ended in time."""
        ...

    @property
    def running(self) -> bool:
        """Whether `run` is in progress; never blocks."""
        ...

    @property
    def heartbeat(self) -> Heartbeat:
        """Beats in every iteration, and records when the loop last reached its mailbox."""
        ...
