"""A collector to be killed: says how many results it holds, and waits for the rest."""

import faulthandler
import sys

import weakincentives
from tests.evals.loops import sums
from weakincentives.evals import collect_results, collection

faulthandler.dump_traceback_later(60, exit=True)
collection.LEASE = 3.0


def say(done: int, expected: int) -> None:
    if done == 40:
        print(done, flush=True)


if __name__ == "__main__":
    url, run, count = sys.argv[1:]
    with weakincentives.connect(url) as backend:
        collect_results(
            backend.mailbox(run),
            dataset=sums(int(count)),
            run_id=run,
            timeout_seconds=50,
            progress=say,
        )
