"""Start/stop races for everything that can be started and stopped.

`exercise` takes a `Service`, which says how one is made, started and stopped, and checks: stop
before start, double stop, double start, stop while starting, many stops at once; nothing raises,
nothing hangs, no thread is left.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testkit.threads import started_since, threads_now
from testkit.waiting import eventually

PATIENCE = 60.0


@dataclass(frozen=True)
class Service:
    """``start`` may block until the end, as ``run()`` does; it is called in a thread."""

    make: Callable[[], Any]
    start: Callable[[Any], object]
    stop: Callable[[Any], object]
    up: Callable[[Any], bool]
    final: bool = True
    """A stopped one does not start again, also if it was stopped before its first start."""
    starts_twice: bool = True
    """A second start while it is up is fine; otherwise it must raise."""


def runnable(make: Callable[[], Any], *, runs_twice: bool = True) -> Service:
    """Everything with run(), shutdown() and running: loops, workers, groups."""
    return Service(
        make,
        start=lambda loop: loop.run(wait_time_seconds=20),
        stop=lambda loop: loop.shutdown(timeout=PATIENCE),
        up=lambda loop: loop.running,
        starts_twice=runs_twice,
    )


def exercise(service: Service, *, rounds: int = 20, seed: int = 0) -> None:
    before = threads_now()
    jitter = random.Random(seed)
    stop_before_start(service)
    double_start(service)
    for _ in range(rounds):
        many_stops(service, stoppers=jitter.randint(2, 5))
        stop_while_starting(service, pause=jitter.random() * 0.002)
    eventually(lambda: not started_since(before), within=PATIENCE)


def stop_before_start(service: Service) -> None:
    thing = service.make()
    service.stop(thing)
    service.stop(thing)
    with Crew() as crew:
        crew.add(service.start, thing)
        if not service.final:
            eventually(lambda: service.up(thing))
            service.stop(thing)
    assert not service.up(thing)


def double_start(service: Service) -> None:
    thing = service.make()
    with Crew() as crew:
        crew.add(service.start, thing)
        eventually(lambda: service.up(thing))
        if service.starts_twice:
            crew.add(service.start, thing)
        else:
            try:
                service.start(thing)
            except RuntimeError:
                pass
            else:
                raise AssertionError("a second start did not raise")
        service.stop(thing)
        # The second start may have come after the stop where a stop is not final.
        crew.join()
        service.stop(thing)
    assert not service.up(thing)


def many_stops(service: Service, *, stoppers: int) -> None:
    thing = service.make()
    with Crew() as crew:
        crew.add(service.start, thing)
        eventually(lambda: service.up(thing))
        together = threading.Barrier(stoppers)

        def stop() -> None:
            together.wait(PATIENCE)
            service.stop(thing)

        for _ in range(stoppers):
            crew.add(stop)
    assert not service.up(thing)


def stop_while_starting(service: Service, *, pause: float) -> None:
    thing = service.make()
    together = threading.Barrier(2)

    def start() -> None:
        together.wait(PATIENCE)
        service.start(thing)

    with Crew() as crew:
        crew.add(start)
        together.wait(PATIENCE)
        time.sleep(pause)  # not to synchronise, but to meet the start at a different place
        service.stop(thing)
        if not service.final:
            crew.join()
            service.stop(thing)
    assert not service.up(thing)


class Crew:
    """Threads that must all end, and whose errors count."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def add(self, call: Callable[..., object], *args: object) -> None:
        def guarded() -> None:
            try:
                call(*args)
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "a start or stop hangs"
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.join()
