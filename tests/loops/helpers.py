"""What the tests of loops share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
