"""Evaluate an agent on a data set: two workers on one SQLite file, a report, and a comparison."""

import threading
from collections.abc import Callable
from pathlib import Path

import weakincentives
from weakincentives.adapters import CallableAdapter
from weakincentives.evals import (
    Dataset,
    EvalLoop,
    EvalReport,
    Sample,
    collect_results,
    compare,
    exact_match,
    submit_dataset,
)
from weakincentives.prompt import Prompt
from weakincentives.runtime import InMemoryMailbox, MainLoop

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi"}
DATASET = Dataset(
    tuple(
        Sample(country.lower(), f"What is the capital of {country}?", city, tags=("capitals",))
        for country, city in CAPITALS.items()
    )
)


def forgetful(prompt: Prompt) -> str:
    return "Paris"


def knowing(prompt: Prompt) -> str:
    country = prompt.params.removeprefix("What is the capital of ").rstrip("?")
    return CAPITALS[country]


def evaluate(
    backend: weakincentives.Backend, name: str, agent: Callable[[Prompt], str]
) -> EvalReport:
    requests, results = backend.mailbox(f"{name}-requests"), backend.mailbox(f"{name}-results")
    main_loop = MainLoop[str, str](
        adapter=CallableAdapter(agent), requests=InMemoryMailbox("unused")
    )
    loop = EvalLoop(loop=main_loop, evaluator=exact_match, requests=requests)
    workers = [threading.Thread(target=loop.run) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        run = submit_dataset(DATASET, requests, reply_to=results)  # each run has an id of its own
        return collect_results(results, dataset=DATASET, run_id=run, timeout_seconds=30)
    finally:
        loop.shutdown()
        for worker in workers:
            worker.join()


def main() -> None:
    with weakincentives.connect("sqlite:///evals.db") as backend:
        before = evaluate(backend, "before", forgetful)
        after = evaluate(backend, "after", knowing)
    print(f"before {before.pass_rate:.0%}, after {after.pass_rate:.0%}")
    for failed in before.failed_samples():
        print(f"  {failed.sample_id}: {failed.score.reason}")
    print("four samples are few:", compare(before, after).verdict)
    Path("report.html").write_text(after.to_html(), encoding="utf-8")


if __name__ == "__main__":
    main()
