"""How a block is run: what the tables of the five documents are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.seeds.stage import Stage

__all__ = ["GROUPS", "Cannot", "Entry", "Pieces", "Run", "Stop"]

Names = Callable[[Stage], Mapping[str, Any]]
Check = Callable[[dict[str, Any]], None]

# What a block needs besides the mailboxes in memory: where it is, once it is built.
GROUPS = {
    "redis": "weakincentives.contrib.mailbox.redis:RedisMailbox",
    "aws": "weakincentives.contrib.mailbox.sqs:SQSMailbox",
    "loops": "weakincentives.runtime.main_loop:MainLoop",
    "dlq": "weakincentives.runtime:DLQPolicy",
    "lifecycle": "weakincentives.runtime:LoopGroup",
    "evals": "weakincentives.evals:EvalLoop",
    "runtime": "weakincentives.runtime:RedisMailbox",
}


class Stop(BaseException):
    """Raised by what a block is given, where the block itself would go on for ever."""


@dataclass(frozen=True)
class Run:
    """Run a block with these names, then check; test functions in it are called.

    ``inside`` is how the block is wrapped where it is no module: "function" for one that returns.
    """

    names: Names = lambda stage: {}
    check: Check = lambda ns: None
    needs: tuple[str, ...] = ()
    raises: type[BaseException] | None = None
    inside: str = "module"


@dataclass(frozen=True)
class Pieces:
    """Run the parts of a block that begin with a comment Bad or Good, each for itself."""

    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Cannot:
    """Do not run a block, for this reason."""

    reason: str


Entry = Run | Pieces | Cannot | list[Run]
