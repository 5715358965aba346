"""A loop inside a group: its name, its thread, and how it ended."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.errors import InvalidParameterError

from .readiness import LoopState
from .runnable import Runnable

__all__ = ["Ended", "Member", "ShutdownReturned", "members_of"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """The notice that a loop has ended."""

    member: "Member"


@dataclass(frozen=True, slots=True)
class ShutdownReturned:
    """The notice that the shutdown() of a loop has returned."""

    member: "Member"


class Member:
    """A loop of a group, with its name, its thread and the error that ended it."""

    def __init__(self, name: str, loop: Runnable) -> None:
        self.name = name
        self.loop = loop
        self.thread: threading.Thread | None = None
        self.ended = True
        self.error: BaseException | None = None
        self.shutdown_returned = False
        """Whether its shutdown() has returned."""
        self.cut_off = False
        """Whether its shutdown() said that work was unfinished at the deadline."""

    def start(self, run: Callable[[Runnable], None], announce: Callable[[Ended], None]) -> None:
        """Run the loop in a thread, keep its exception, and announce when it has ended."""

        def serve() -> None:
            try:
                run(self.loop)
            except BaseException as error:  # noqa: BLE001 - the group raises it from its own run()
                self.error = error
            finally:
                announce(Ended(self))

        # A daemon thread, so that a loop that does not end in time cannot keep the process alive.
        self.thread = threading.Thread(target=serve, name=self.name, daemon=True)
        self.ended = False
        try:
            self.thread.start()
        except RuntimeError:
            self.ended = True
            raise

    def stop(self, timeout: float, announce: Callable[[ShutdownReturned], None]) -> None:
        """Stop the loop within ``timeout`` seconds, in a thread; announce its return."""

        def stop() -> None:
            # A user's own loop may return None, which is not a complaint.
            self.cut_off = self._shutdown(timeout) is False
            self.shutdown_returned = True
            announce(ShutdownReturned(self))

        try:
            threading.Thread(target=stop, daemon=True).start()
        except RuntimeError:
            # No thread can be started, and waiting here would delay stopping the other loops.
            self._shutdown(0.0)
            self.shutdown_returned = True

    def has_stopped(self, *, late: bool) -> bool:
        """Return whether there is nothing to wait for; ``late`` means after the deadline."""
        return self.shutdown_returned and (self.ended or (late and self.cut_off))

    def _shutdown(self, timeout: float) -> bool | None:
        try:
            return self.loop.shutdown(timeout=timeout)
        except Exception:
            logger.exception("shutdown() of %s failed", self.name)
            return None

    @property
    def crash(self) -> str | None:
        """The type name of the exception that the loop raised; safe to show to anyone."""
        return None if self.error is None else type(self.error).__name__

    @property
    def state(self) -> LoopState:
        """The state that health probes report."""
        return LoopState(self.name, self.loop.running, self.loop.heartbeat, self.crash)

    def leaves(self) -> "Iterator[Member]":
        """Yield this member, or the members of all inner groups if its loop is a group."""
        members: Sequence[Member] | None = getattr(self.loop, "members", None)
        if members is None:
            yield self
        else:
            for member in members:
                yield from member.leaves()


def members_of(loops: Iterable[Runnable]) -> list[Member]:
    """Check the loops of a group and give each one a name."""
    if not isinstance(loops, Iterable):
        raise InvalidParameterError(f"loops must be a list of loops, not a {type(loops).__name__}")
    given = list(loops)  # a generator can be read only once
    if not given:
        raise InvalidParameterError("loops must contain at least one loop")
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
