"""What jobs tell of themselves, through a pipe that a worker and its children inherit."""

import asyncio
import os
import struct
import time

__all__ = ["BEGUN", "ENDED", "FORMAT", "MARKS", "SETTLED", "job", "mark"]

MARKS = "BENCHMARK_MARKS"
"""The environment variable with the number of the pipe's end."""
FORMAT = struct.Struct("=cd")
"""A mark and the time, of a clock that all processes share. Short enough to be written at once."""
BEGUN, ENDED = b"(", b")"
SETTLED = b"="
"""Nothing is left in the queue; only a worker that can tell says so."""


def mark(kind: bytes) -> None:
    os.write(int(os.environ[MARKS]), FORMAT.pack(kind, time.monotonic()))


async def job(seconds: float) -> None:
    """Wait, as jobs do that call a model."""
    mark(BEGUN)
    await asyncio.sleep(seconds)
    mark(ENDED)
