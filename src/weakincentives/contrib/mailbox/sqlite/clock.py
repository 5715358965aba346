"""The file's own clock: the wall clock may jump without moving it, and it survives reboots."""

from pathlib import Path
from typing import NamedTuple

from weakincentives.clock import Clock
from weakincentives.runtime.mailbox.errors import MailboxConnectionError

__all__ = ["Era", "FileClock", "kernel_boot_id", "next_era"]

MICRO = 1_000_000
# The wall clock's offset is stored again only when it has changed by more than this.
NOTEWORTHY = MICRO


class Era(NamedTuple):
    """How a file's clock relates to the clocks of the machine; see ``era`` in schema.sql."""

    boot: str
    shift_us: int
    wall_offset_us: int
    seen_us: int = 0


def next_era(former: Era | None, boot: str, wall_offset_us: int, steady_us: int = 0) -> Era:
    """Return the era for a process that opens the file now.

    Within one boot the file's clock simply continues. After a reboot it is set by the wall clock,
    with the same difference between the two as before. It is never set back: a machine without a
    battery may boot in the wrong year, and a delay of a minute must not last that long.
    """
    if former is None:
        return Era(boot, wall_offset_us, wall_offset_us)
    if former.boot != boot:
        ahead = former.shift_us - former.wall_offset_us
        shift_us = max(wall_offset_us + ahead, former.seen_us - steady_us)
        return Era(boot, shift_us, wall_offset_us, former.seen_us)
    if abs(former.wall_offset_us - wall_offset_us) > NOTEWORTHY:
        return former._replace(wall_offset_us=wall_offset_us)
    return former


def kernel_boot_id() -> str:
    """Return an id that changes with each boot; '' on systems that have none (not Linux)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class FileClock:
    """Reads the file's clock. Without a boot id it is the wall clock: then reboots do no harm, but
    a jump of the wall clock shifts leases."""

    def __init__(self, clock: Clock, boot: str) -> None:
        self.clock = clock
        self.boot = boot
        self.shift_us = 0
        self._steady = clock.monotonic if boot else clock.time
        self.stranded = False
        """Whether this child was forked in the middle of a step, which it must not continue."""

    def now_us(self) -> int:
        """Return the time on the file's clock."""
        now = int(self._steady() * MICRO) + self.shift_us
        if self.stranded:
            raise MailboxConnectionError("this process was forked in the middle of a step")
        return now

    def steady_us(self) -> int:
        """Return the time on the underlying clock, without the file's shift."""
        return int(self._steady() * MICRO)

    def wall_offset_us(self) -> int:
        """Return how far the wall clock is ahead of the boot clock."""
        return int((self.clock.time() - self._steady()) * MICRO)

    def wall(self, time_us: int) -> float:
        """Convert a time on the file's clock to the wall clock."""
        return self.clock.time() + (time_us - self.now_us()) / MICRO
