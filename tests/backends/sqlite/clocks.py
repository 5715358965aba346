"""A boot clock and a wall clock that move apart when they are told to."""


class TwoClocks:
    def __init__(self) -> None:
        self.boot = 1000.0
        self.wall = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.boot

    def time(self) -> float:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.boot += seconds
        self.wall += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as NTP or an operator does."""
        self.wall += seconds

    def reboot(self, seconds_off: float) -> None:
        self.boot = 5.0
        self.wall += seconds_off
