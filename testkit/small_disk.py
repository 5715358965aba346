"""A disk that is soon full: a few megabytes of memory that one process alone sees."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["filled", "mount_small_disk"]

CHUNK = b"x" * 4096


def mount_small_disk(place: Path) -> None:
    """Mount 40 MiB of memory, seen by this process and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private_mounts = 0x00020000, 1 << 18 | 1 << 14
    calls: tuple[Callable[[], int], ...] = (
        lambda: libc.unshare(new_namespace),
        lambda: libc.mount(b"none", b"/", None, private_mounts, None),
        lambda: libc.mount(b"none", bytes(place), b"tmpfs", 0, b"size=40m"),
    )
    for call in calls:
        if call() != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no room on a disk, as long as this lasts."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(CHUNK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        try:
            yield
        finally:
            ballast.unlink()
