"""Waiting for what must become true, with a deadline and without guessing a pause."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], *, within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not become true within {within} s")
        time.sleep(0.005)
