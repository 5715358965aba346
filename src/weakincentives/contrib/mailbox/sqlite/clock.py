"""The file's own clock: no jump of the wall clock moves it, and it goes on across reboots."""

from pathlib import Path
from typing import NamedTuple

from weakincentives.clock import Clock
from weakincentives.runtime.mailbox.errors import MailboxConnectionError

__all__ = ["Era", "FileClock", "kernel_boot_id", "next_era"]

MICRO = 1_000_000
# The wall clock is only noted anew when it has moved by more than this.
NOTEWORTHY = MICRO


class Era(NamedTuple):
    """How a file's clock relates to the clocks of the machine; see ``era`` in schema.sql."""

    boot: str
    shift_us: int
    wall_offset_us: int
    seen_us: int = 0


def next_era(former: Era | None, boot: str, wall_offset_us: int, steady_us: int = 0) -> Era:
    """Return the era that a process which opens the file now lives in.

    In the same boot the clock goes on as it is. In another one it goes on by the wall clock, from
    where it stood beside the wall clock when that was last seen; but it does not go back: a machine
    without a battery boots in another year, and a delay of a minute must not last until then.
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
    """Return what is different after each boot; '' where the system does not tell (not Linux)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class FileClock:
    """Reads the file's clock. Without a boot id it is the wall clock: reboots do no harm then, but
    a jump shifts leases."""

    def __init__(self, clock: Clock, boot: str) -> None:
        self.clock = clock
        self.boot = boot
        self.shift_us = 0
        self._steady = clock.monotonic if boot else clock.time
        self.stranded = False
        """This is a child that was forked in the middle of a step: nobody may go on with it."""

    def now_us(self) -> int:
        """Return the time on the file's clock."""
        now = int(self._steady() * MICRO) + self.shift_us
        if self.stranded:
            raise MailboxConnectionError("this process was forked in the middle of a step")
        return now

    def steady_us(self) -> int:
        """Return the time on the clock that the file's clock goes by."""
        return int(self._steady() * MICRO)

    def wall_offset_us(self) -> int:
        """Return how far the wall clock is ahead of the boot clock."""
        return int((self.clock.time() - self._steady()) * MICRO)

    def wall(self, time_us: int) -> float:
        """Return a time on the file's clock as the wall clock shows it, as seen now."""
        return self.clock.time() + (time_us - self.now_us()) / MICRO
