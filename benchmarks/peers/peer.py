"""What a library must be able to do to take part."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["PEERS", "Load", "Peer"]

PEERS = {
    "taskiq:Taskiq": ("taskiq", "taskiq-redis"),
    "arq:Arq": ("arq",),
    "saq:Saq": ("saq[redis]", "typing-extensions"),
}
"""The classes by module and name, and the packages that each of them needs."""


@dataclass(frozen=True)
class Load:
    """So many jobs, each of so many seconds, so many at a time."""

    count: int
    seconds: float
    concurrency: int
    lease: float = 60.0
    """How long a worker has a job for before it must extend that; where there is such a thing."""

    @property
    def ideal(self) -> float:
        """The seconds that it takes at least."""
        return -(-self.count // self.concurrency) * self.seconds


class Peer(Protocol):
    """A library that runs jobs.

    To add one, write this class in a module and list it in `PEERS` with what to install: the module
    is imported in an environment that has nothing else.
    """

    def send(self, url: str, load: Load) -> None:
        """Send the jobs, each a call of `marks.job`."""
        ...

    def serve(self, url: str, load: Load) -> None:
        """Run a worker, with its own children if it has any, until it is ended from outside."""
        ...
