"""What loops that are built on a `Worker` share: they run it, watch it and stop it."""

from typing import Any

from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.leases.extender import LeaseExtender

from .worker import SHUTDOWN_SECONDS, Worker

__all__ = ["BuiltOnWorker"]


class BuiltOnWorker:
    """A loop that uses a `Worker` for its work."""

    _worker: Worker[Any, Any]

    def _bind(self) -> None:
        """Declare the types of the mailboxes, as far as the loop knows them."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Whether `run` is in progress."""
        return self._worker.running

    @property
    def heartbeat(self) -> Heartbeat:
        """The loop's heartbeat."""
        return self._worker.heartbeat

    @property
    def lease_extender(self) -> LeaseExtender:
        """The extender of this loop's leases, with its counters."""
        return self._worker.lease_extender

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve until `shutdown`, or for ``max_iterations`` receives, empty or not."""
        self._bind()
        self._worker.run(
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )

    async def run_async(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Do what `run` does, in the event loop of the caller; see `Worker.run_async`."""
        self._bind()
        await self._worker.run_async(
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )

    def shutdown(self, *, timeout: float = SHUTDOWN_SECONDS) -> bool:
        """Stop the loop for good; return True if it has ended within ``timeout`` seconds."""
        return self._worker.shutdown(timeout=timeout)

    async def shutdown_async(self, *, timeout: float = SHUTDOWN_SECONDS) -> bool:
        """Do what `shutdown` does, without blocking the event loop."""
        return await self._worker.shutdown_async(timeout=timeout)
