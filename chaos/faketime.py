"""Programs whose wall clock is moved while they run, by libfaketime; monotonic clocks stay true."""

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

from testkit.servers import servers_available

__all__ = ["ELSEWHERE", "MovedClock", "faketime_library"]

FAKETIME = "WINK_FAKETIME"
ELSEWHERE = "no libfaketime for this platform"
"""Part of the reason where there is no ready library to be had: neither an omission nor a fault."""

_IN_WHEEL = "vendor/libfaketime/src/libfaketime.so.1"
_PLACES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)
# Debian's Redis is linked to jemalloc, which asks for the time while libfaketime is still being
# set up by an allocation: neither gets any further. With the C library in front of it, nobody
# allocates there.
_ALLOCATOR = "libc.so.6"


def faketime_library() -> Path | str:
    """Return libfaketime, or why there is none: WINK_FAKETIME names it, or it is installed."""
    if named := os.environ.get(FAKETIME):
        return Path(named)
    for path in (*_in_wheel(), *_on_the_system()):
        if path.exists():
            return path
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"{ELSEWHERE}: its wheel has one for Linux on x86-64; {FAKETIME} names its file"
    return f"libfaketime is not installed: it is in the group dev; or {FAKETIME} names its file"


def _in_wheel() -> list[Path]:
    """The library in its wheel, found without importing that: it would want to restart Python."""
    spec = importlib.util.find_spec("libfaketime")
    if spec is None or spec.origin is None or platform.machine() != "x86_64":
        return []
    return [Path(spec.origin).parent / _IN_WHEEL]


def _on_the_system() -> list[Path]:
    return [path for place in _PLACES for path in sorted(Path("/").glob(place.lstrip("/")))]


class MovedClock:
    """A file that says by how much the wall clock of some processes is off."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._directory = directory
        self._library = library
        self._offset = directory / "offset"
        self.seconds = 0
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let the clocks be off by so much from now on."""
        self.seconds = seconds
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._offset)  # nobody must read half of it

    @property
    def environment(self) -> dict[str, str]:
        """What a process must be started with."""
        return {
            "LD_PRELOAD": f"{self._library} {_ALLOCATOR}",
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # The cure for a fault that no C library of today has makes threads wait too long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def server(self) -> Path | None:
        """Return a command that runs a server by this clock; None if none can."""
        for binary in servers_available().values():
            wrapper = self._directory / f"{binary.name}-under-faketime"
            settings = " ".join(f"{name}='{text}'" for name, text in self.environment.items())
            wrapper.write_text(f'#!/bin/sh\nexport {settings}\nexec {binary.absolute()} "$@"\n')
            wrapper.chmod(0o700)
            if self._starts(wrapper):
                return wrapper
        return None

    def _starts(self, wrapper: Path) -> bool:
        """Whether it gets as far as to find that it has no port to listen on."""
        try:
            probe = subprocess.run(
                [wrapper, "--port", "0"],
                cwd=self._directory,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        except subprocess.TimeoutExpired:
            return False
        return "not listen anywhere" in probe.stdout
