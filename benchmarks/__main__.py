"""Run the benchmarks: ``python -m benchmarks [--json] [suite ...]``."""

import argparse
import importlib
import sys

from benchmarks.harness import report

SUITES = ("memory", "sqlite", "redis", "callers", "sqs", "async_jobs", "evals", "telemetry")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="default: all of them")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    missed = 0
    for name in options.suites or SUITES:
        suite = importlib.import_module(f"benchmarks.{name}")
        shown = report(name, suite.rows(), as_json=options.json)
        missed += sum(not row.met for row in shown)
    if missed and not options.json:
        print(f"\n{missed} figures missed their target.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
