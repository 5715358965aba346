"""The tracer that interrupts an operation at each of its points, and at no other."""

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from chaos.interrupts import Interrupted
from chaos.points import Points
from testkit.bytecode import unguarded_jumps


@pytest.fixture
def collected() -> Iterator[list[str]]:
    """Give out the list of collections that a callback of the garbage collector has seen."""
    seen: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        seen.append(str(phase))

    former = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(callback)
    gc.set_threshold(5)
    try:
        yield seen
    finally:
        gc.set_threshold(*former)
        gc.callbacks.remove(callback)


def work() -> list[list[int]]:
    return [list(range(one)) for one in range(200)]


def test_a_collection_has_no_points(collected: list[str]) -> None:
    counts = set()
    with Points(raising=True):
        work()  # from Python 3.13 on, a function has no points when it is first traced
    for _ in range(5):
        with Points(raising=True) as points:
            del collected[:]
            work()
            assert collected == []
        counts.add(points.count)
    assert len(counts) == 1
    work()
    assert collected != []  # the collector is on again


def test_the_collector_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with Points(raising=False):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def wait(ended: list[bool]) -> None:
    left = [1, 2, 3]
    try:
        while left.pop() > 1:
            len(left)
    finally:
        ended.append(True)


def test_a_jump_that_python_leaves_unguarded_is_a_point() -> None:
    def interrupt() -> None:
        raise Interrupted

    for _ in range(2):
        with Points(raising=True) as points:
            wait([])
    passed_by = 0
    for at in range(1, points.count + 1):
        ended: list[bool] = []
        with suppress(Interrupted), Points(True, at, interrupt):
            wait(ended)
        passed_by += not ended
    # One at the beginning of the function, before the `try`.
    assert (passed_by > 1) == bool(list(unguarded_jumps(wait.__code__)))
