"""Run scenarios: ``python -m chaos [--seed N] [--scale short|full] [--json out] [name ...]``."""

import argparse
import json
import logging
import platform
import signal
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

from chaos.scenarios import all_scenarios
from chaos.stage import Result, Scenario
from testkit.servers import servers_available
from testkit.servers.aws import MINISTACK

LONGEST = 1200
"""Seconds that a scenario may take; the longest takes five minutes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--scale", choices=("short", "full"), default="short")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--list", action="store_true", help="show the scenarios")
    parser.add_argument("scenarios", nargs="*", help="all or part of their names; default: all")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = [
        one
        for key, one in all_scenarios().items()
        if not options.scenarios or any(part in key for part in options.scenarios)
    ]
    if options.list:
        for one in chosen:
            print(f"{one.key:50} {one.trials[options.scale]:>8}  {one.what}")
        return 0
    began = time.monotonic()
    earlier = _earlier(options)
    rows = [] if earlier is None else earlier["rows"]  # what is run again replaces what was
    for number, one in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {one.key} ", end="", flush=True)
        row = run(one, options.seed, options.scale)
        rows = [other for other in rows if other["key"] != one.key] + [row]
        print(_line(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(_document(options, rows, earlier), indent=1) + "\n")
    bad = [row for row in rows if row["violations"]]
    print(
        f"{len(chosen)} scenarios in {time.monotonic() - began:.0f} s, {len(bad)} with violations"
    )
    return 1 if bad else 0


def run(one: Scenario, seed: int, scale: Any) -> dict[str, Any]:
    """Run one scenario and return its row; one that breaks, or never ends, is a violation."""
    began = time.monotonic()
    former = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LONGEST)
    try:
        result = one(seed, scale)
    except Exception:
        result = Result(0, [f"the scenario broke: {traceback.format_exc()}"])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    return {
        "key": one.key,
        "name": one.name.replace("_", " "),
        "subject": one.subject,
        "backend": one.backend,
        "what": one.what,
        "trials": result.trials,
        "violations": len(result.violations),
        "examples": result.violations[:5],
        "figures": result.figures,
        "notes": result.notes,
        "not_run": result.not_run,
        "seconds": round(time.monotonic() - began, 1),
        "date": _today(),
        "python": platform.python_version(),
    }


def _give_up(number: int, frame: object) -> None:
    raise AssertionError(f"it has not ended within {LONGEST} s")


def _line(row: dict[str, Any]) -> str:
    if row["not_run"]:
        return f"NOT RUN: {row['not_run']}"
    figures = ", ".join(f"{name} {value:g}" for name, value in row["figures"].items())
    text = f"{row['trials']} trials, {row['violations']} violations, {row['seconds']} s ({figures})"
    for example in row["examples"]:
        text += f"\n    VIOLATION {example}"
    for note in row["notes"]:
        text += f"\n    note: {note}"
    return text


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _earlier(options: Any) -> dict[str, Any] | None:
    """Return the run whose other rows are kept, when only some scenarios of its scale are run."""
    if not options.scenarios or not options.json or not options.json.exists():
        return None
    document: dict[str, Any] = json.loads(options.json.read_text())
    if document["scale"] != options.scale:
        return None
    document["rows"] = [row for row in document["rows"] if row["key"] in all_scenarios()]
    return document


def _document(
    options: Any, rows: list[dict[str, Any]], earlier: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the whole run; date and versions are those of the run to which rows are added."""
    whole = earlier or {"date": _today(), "seed": options.seed, "versions": _versions()}
    return {
        "date": whole["date"],
        "seed": whole["seed"],
        "scale": options.scale,
        "minutes": round(sum(row["seconds"] for row in rows) / 60, 1),
        "versions": whole["versions"],
        "rows": sorted(rows, key=lambda row: row["key"]),
    }


def _versions() -> dict[str, str]:
    servers = {
        name: subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        .stdout.split("sha=")[0]
        .strip()
        for name, path in servers_available().items()
    }
    return {
        "weakincentives": version("weakincentives"),
        "Python": platform.python_version(),
        "SQLite": apsw.sqlite_lib_version(),
        "redis-py": version("redis"),
        "server": next(iter(servers.values()), "none"),
        "emulator of SQS": MINISTACK.packages[0].replace("==", " "),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


if __name__ == "__main__":
    sys.exit(main())
