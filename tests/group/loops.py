"""Small loops with every habit, good and bad, that a group must cope with."""

import threading
from collections.abc import Callable
from typing import Any

from weakincentives.runtime import Heartbeat
from weakincentives.runtime.mailbox import InMemoryMailbox


def ignore(body: Any) -> None:
    pass


class SmallLoop:
    """A loop as small as it can be: its shutdown() closes the mailbox, which wakes a receive."""

    def __init__(
        self, mailbox: InMemoryMailbox[Any, Any], handle: Callable[[Any], object] = ignore
    ) -> None:
        self.mailbox = mailbox
        self.handle = handle
        self.heartbeat = Heartbeat()
        self._lock = threading.Lock()
        self._inside = 0
        self._idle = threading.Condition(self._lock)

    @property
    def running(self) -> bool:
        return self._inside > 0

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        with self._lock:
            self._inside += 1
        try:
            wait = 0.0  # the first look does not wait, so that readiness comes at once
            while not self.mailbox.closed and max_iterations != 0:
                with self.heartbeat.looking(wait):
                    messages = self.mailbox.receive(
                        visibility_timeout=visibility_timeout, wait_time_seconds=wait
                    )
                wait = wait_time_seconds
                for message in messages:
                    with self.heartbeat.working():
                        self.handle(message.body)
                    message.acknowledge()
                if max_iterations is not None:
                    max_iterations -= 1
        finally:
            with self._lock:
                self._inside -= 1
                self._idle.notify_all()

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        self.mailbox.close()
        if self.heartbeat.at_work():
            return False
        with self._lock:
            return self._idle.wait_for(lambda: not self._inside, timeout)


def loop(handle: Callable[[Any], object] = ignore, *bodies: Any, name: str = "jobs") -> SmallLoop:
    mailbox: InMemoryMailbox[Any, Any] = InMemoryMailbox(name)
    for body in bodies:
        mailbox.send(body)
    return SmallLoop(mailbox, handle)
