"""Threads that send and consume while something breaks."""

import threading
from collections.abc import Callable
from typing import Any

from chaos.history import now
from chaos.stage import Stage
from testkit.waiting import eventually
from weakincentives.runtime.mailbox.errors import MailboxError, ReceiptHandleExpiredError

__all__ = ["Load"]


class Load:
    """Threads of this process that send and consume until they are told to stop."""

    def __init__(
        self,
        stage: Stage,
        *,
        senders: int = 2,
        consumers: int = 2,
        lease: float = 10.0,
        **options: Any,
    ) -> None:
        self._stop = threading.Event()
        self._lease = lease
        # A short run is about the fault, not about the load; most of it is waiting for a failover.
        self._pause = 0.002 if stage.full else 0.02
        self.errors: list[str] = []
        self.successes: list[float] = []
        """When each operation that succeeded ended."""
        self._threads = [
            threading.Thread(
                target=self._guarded,
                args=(act, stage.mailbox(client=f"{act.__name__}-{n}-{id(self)}", **options)),
                daemon=True,
            )
            for act, count in ((self._send, senders), (self._consume, consumers))
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a client hangs"

    def recovered(self, since: float, within: float = 30.0) -> float:
        """Wait until an operation that began after the fault has succeeded; return how long."""
        eventually(lambda: self.successes and self.successes[-1] > since, within, "recovery")
        return next(at for at in reversed(self.successes) if at > since) - since

    def _guarded(self, act: Callable[[Any], None], box: Any) -> None:
        while not self._stop.is_set():
            try:
                act(box)
                self.successes.append(now())
            except ReceiptHandleExpiredError:
                pass
            except MailboxError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                self._stop.wait(0.05)

    def _send(self, box: Any) -> None:
        box.send("x" * 100)
        self._stop.wait(self._pause)

    def _consume(self, box: Any) -> None:
        for message in box.receive(
            max_messages=5, visibility_timeout=self._lease, wait_time_seconds=0.2
        ):
            message.acknowledge()
