"""A loop, as those see it who run it."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .heartbeat import Heartbeat
from .mailbox.errors import InvalidParameterError
from .probes import LoopState

__all__ = ["Ended", "Member", "Runnable", "members_of"]

logger = logging.getLogger(__name__)


@runtime_checkable
class Runnable(Protocol):
    """A loop: everything that can be run, told to stop, and watched."""

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve until `shutdown`, or for so many receives; return at once after a shutdown."""
        ...

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop for good, also a receive that waits; True if all work ended in time."""
        ...

    @property
    def running(self) -> bool:
        """Whether somebody is in `run`; never blocks."""
        ...

    @property
    def heartbeat(self) -> Heartbeat:
        """The pulse: beats at every turn, and knows when the mailbox was reached."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """The news that a loop has ended."""

    member: "Member"


class Member:
    """A loop of a group, its name there, its thread and its end."""

    def __init__(self, name: str, loop: Runnable) -> None:
        self.name = name
        self.loop = loop
        self.thread: threading.Thread | None = None
        self.ended = True
        self.error: BaseException | None = None

    def start(self, run: Callable[[Runnable], None], tell: Callable[[Ended], None]) -> None:
        """Run the loop in a thread, keep what it raised, and tell of its end."""

        def serve() -> None:
            try:
                run(self.loop)
            except BaseException as error:  # noqa: BLE001 - the group raises it from its own run()
                self.error = error
            finally:
                tell(Ended(self))

        # A daemon, so that a loop which does not end in time cannot keep the process.
        self.thread = threading.Thread(target=serve, name=self.name, daemon=True)
        self.ended = False
        try:
            self.thread.start()
        except RuntimeError:
            self.ended = True
            raise

    def told(self, timeout: float) -> threading.Thread | None:
        """Tell the loop to stop within so many seconds; return the thread that waits for it."""
        thread = threading.Thread(target=self._tell, args=(timeout,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread is left: nobody can wait here while the other loops are told.
            self._tell(0.0)
            return None
        return thread

    def _tell(self, timeout: float) -> None:
        try:
            self.loop.shutdown(timeout=timeout)
        except Exception:
            logger.exception("shutdown() of %s failed", self.name)

    @property
    def crash(self) -> str | None:
        """The type of what the loop raised, which may be told to strangers."""
        return None if self.error is None else type(self.error).__name__

    @property
    def state(self) -> LoopState:
        """What a probe may know."""
        return LoopState(self.name, self.loop.running, self.loop.heartbeat, self.crash)

    def leaves(self) -> "Iterator[Member]":
        """Iterate over the loops that this one consists of."""
        members: Sequence[Member] | None = getattr(self.loop, "members", None)
        if members is None:
            yield self
        else:
            for member in members:
                yield from member.leaves()


def members_of(loops: Iterable[Runnable]) -> list[Member]:
    """Check the loops of a group and give each a name."""
    if not isinstance(loops, Iterable):
        raise InvalidParameterError(f"loops must be a list of loops, not a {type(loops).__name__}")
    given = list(loops)  # once: a generator would be empty the second time
    if not given:
        raise InvalidParameterError("loops must hold at least one loop")
    for loop in given:
        missing = [
            name for name in ("run", "shutdown", "running", "heartbeat") if not hasattr(loop, name)
        ]
        if missing:
            raise InvalidParameterError(
                f"a loop needs run(), shutdown(), running and heartbeat; "
                f"{type(loop).__name__} has no {', '.join(missing)}"
            )
    return [Member(f"{type(loop).__name__}-{number}", loop) for number, loop in enumerate(given)]
