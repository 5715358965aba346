"""Passes over many dead letters, in the background: they show progress and can be stopped."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import WinkError
from weakincentives.ids import new_id
from weakincentives.logs import get_logger
from weakincentives.runtime.leases.walk import Walk

__all__ = ["PassView", "RunningPass", "RunningPasses", "TooManyPassesError"]

logger = get_logger(__name__)

MOST_AT_ONCE = 4
REMEMBERED = 50


class TooManyPassesError(WinkError):
    """Too many passes over dead letters are under way; wait until one has ended."""


class StoppedError(Exception):
    """Somebody has stopped the pass."""


@dataclass(frozen=True, slots=True)
class PassView:
    """How far a pass is."""

    id: str
    action: str
    queue: str
    find: str
    state: str
    """``running``, ``done``, ``stopped`` or ``failed``."""
    looked: int
    waiting: int
    """How many letters there were when it began."""
    taken: int
    """How many it has replayed or discarded, or found if it only counts."""
    most: int | None
    """After how many it ends; None: after all that match."""
    until: float
    error: str | None


class RunningPass:
    """A pass over the letters of one queue, in a thread of its own."""

    def __init__(self, view: PassView, ended: Callable[[PassView], object]) -> None:
        self._view = view
        self._ended = ended
        self._stop = threading.Event()
        self._looked = 0
        self._taken = 0
        self._state = "running"
        self._error: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._state == "running"

    def view(self) -> PassView:
        """Return how far it is."""
        view = self._view
        return PassView(
            id=view.id,
            action=view.action,
            queue=view.queue,
            find=view.find,
            state=self._state,
            looked=self._looked,
            waiting=max(view.waiting, self._looked),
            taken=self._taken,
            most=view.most,
            until=view.until,
            error=self._error,
        )

    def stop(self) -> None:
        """End it before the next letter: what is done is done, the rest is left alone."""
        self._stop.set()

    def start(self, walk: Walk[Any], finish: Callable[[], object]) -> None:
        """Walk in a thread; ``finish`` is called at the end in any case."""
        threading.Thread(
            target=self._run, args=(walk, finish), name="dashboard-pass", daemon=True
        ).start()

    def _run(self, walk: Walk[Any], finish: Callable[[], object]) -> None:
        state = "done"
        try:
            self._walk(walk.watched_by(self._look))
        except StoppedError:
            state = "stopped"
        except WinkError as error:
            state, self._error = "failed", f"{type(error).__name__}: {error}"
        except Exception as error:
            state, self._error = "failed", type(error).__name__
            logger.exception("a pass over dead letters failed", exc_info=error)
        finally:
            finish()
            self._state = state
            self._ended(self.view())

    def _walk(self, letters: Iterable[object]) -> None:
        for _ in letters:
            self._taken += 1
            if self._taken == self._view.most:
                return

    def _look(self) -> None:
        if self._stop.is_set():
            raise StoppedError
        self._looked += 1


class RunningPasses:
    """The passes that this dashboard has begun, the last ones of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: dict[str, RunningPass] = {}

    def begin(
        self,
        action: str,
        queue: str,
        find: str,
        waiting: int,
        most: int | None,
        ended: Callable[[PassView], object],
    ) -> RunningPass:
        """Return a new pass that is not started yet."""
        view = PassView(
            new_id(), action, queue, find, "running", 0, waiting, 0, most, time.time(), None
        )
        made = RunningPass(view, ended)
        with self._lock:
            self._make_room()
            self._passes[view.id] = made
        return made

    def _make_room(self) -> None:
        ended = [id for id, one in self._passes.items() if not one.is_running]
        if len(self._passes) - len(ended) >= MOST_AT_ONCE:
            raise TooManyPassesError()
        for id in ended[: max(len(self._passes) - REMEMBERED + 1, 0)]:
            del self._passes[id]

    def get(self, id: str) -> RunningPass | None:
        """Return a pass by its id; None if it is unknown or forgotten."""
        return self._passes.get(id)

    def stop(self) -> None:
        """Stop all of them."""
        for one in list(self._passes.values()):
            one.stop()
