"""What the tests of loops share."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def eventually(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """Wait until the condition holds, and return what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


@contextmanager
def in_background(loop: Any, **run: Any) -> Iterator[threading.Thread]:
    """Run a loop in a thread, and end it afterwards."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            loop.run(**run)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield thread
    finally:
        loop.shutdown(timeout=10)
        thread.join(10)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
