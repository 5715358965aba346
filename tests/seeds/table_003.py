"""003, first half: distributed orchestration up to the production patterns."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tests.seeds import loops
from tests.seeds.compare import has_methods
from tests.seeds.stage import Box, Request, Result, Stage
from tests.seeds.table import Entry, Run
from tests.seeds.table_000 import check_message
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    Mailbox,
    MailboxResolver,
    MessageFinalizedError,
)

Names = dict[str, Any]


def answered(*bodies: Any) -> Names:
    """Requests whose sender reads the replies in ``responses``."""
    responses = Box(name="responses")
    return {"requests": Box(*bodies, reply_to=responses), "responses": responses}


def check_basics(ns: Names) -> None:
    assert ns["result"] == "PROCESS THIS TASK"
    assert ns["requests"].approximate_count() == 0


def check_progress(ns: Names) -> None:
    steps = ns["responses"].bodies()
    assert [getattr(step, "step", None) for step in steps] == [1, 2, 3, None]
    assert steps[-1].result == "Done"
    assert ns["requests"].approximate_count() == 0


def counts(**expected: int) -> Any:
    """Check how many messages mailboxes hold."""

    def check(ns: Names) -> None:
        assert {box: ns[box].approximate_count() for box in expected} == expected

    return check


def on_redis(stage: Stage) -> Names:
    """Names that blocks with Redis take for granted."""
    from weakincentives.contrib.mailbox import RedisMailbox

    client = stage.redis()
    return {
        "InMemoryMailbox": InMemoryMailbox,
        "Path": Path,
        "Redis": type(client),
        "RedisMailbox": RedisMailbox,
        "redis": client,
        "redis_client": client,
        "responses": RedisMailbox(name="responses", client=client),
        "uuid4": uuid4,
    }


def two_kinds(stage: Stage) -> Names:
    names = on_redis(stage)
    box = names["RedisMailbox"](name="redis-requests", client=names["redis_client"])
    return {**names, "requests": Box(), "redis_requests": box}


def check_two_kinds(ns: Names) -> None:
    (here,), (there,) = ns["requests"].receive(), ns["redis_requests"].receive()
    assert here.reply_to is ns["responses"]
    assert there.reply_to.name == "responses"


def check_resolver(ns: Names) -> None:
    assert ns["alerts_mailbox"] is ns["registry"]["critical-alerts"]
    assert ns["dynamic_mailbox"].name == "client-12345"


def check_replied(ns: Names) -> None:
    assert [message.body for message in ns["responses"].receive()] == ["result"]
    assert ns["requests"].approximate_count() == 0


def ends_itself(stage: Stage, loop: str) -> Any:
    """An answer for an adapter that also ends the loop of this name, which runs for ever."""

    def answer(prompt: Any) -> str:
        stage.background(lambda: stage.namespace[loop].shutdown(timeout=20))
        return "done"

    return answer


def main_loop(stage: Stage) -> Names:
    names = {**on_redis(stage), **loops.names()}
    results = names["RedisMailbox"](name="results", client=names["redis_client"])
    queue = names["RedisMailbox"](name="agent-requests", client=names["redis_client"])
    queue.send(names["MainLoopRequest"](request="work"), reply_to=results)
    return {
        **names,
        "adapter": loops.adapter(ends_itself(stage, "main_loop")),
        "resources": None,
        "results": results,
    }


def check_main_loop(ns: Names) -> None:
    (message,) = ns["results"].receive(wait_time_seconds=5)
    assert message.body["output"] == "done"


def evaluating(stage: Stage, answer: Any) -> Names:
    """A main loop and an evaluator for blocks that evaluate."""
    from weakincentives.evals import exact_match

    inner = loops.built("MainLoop")(adapter=loops.adapter(answer), requests=Box(name="unused"))
    return {**loops.names(), "evaluator": exact_match, "main_loop": inner}


def eval_loop(stage: Stage) -> Names:
    from weakincentives.evals import Dataset, Sample, submit_dataset

    names = {**on_redis(stage), **evaluating(stage, ends_itself(stage, "eval_loop"))}
    results = names["RedisMailbox"](name="results", client=names["redis_client"])
    queue = names["RedisMailbox"](name="eval-requests", client=names["redis_client"])
    dataset = Dataset(samples=(Sample(id="1", input="2+2", expected="done"),))
    submit_dataset(dataset, queue, reply_to=results)
    return {**names, "results": results}


def check_eval_loop(ns: Names) -> None:
    from weakincentives.evals import collect_results

    assert collect_results(ns["results"], expected_count=1, timeout_seconds=10).pass_rate == 1.0


def distributed(stage: Stage) -> Names:
    from weakincentives.evals import EvalLoop

    samples = [{"id": str(n), "input": f"q{n}", "expected": "done"} for n in range(6)]
    (stage.tmp_path / "qa.jsonl").write_text("\n".join(json.dumps(s) for s in samples))
    names = {**on_redis(stage), **evaluating(stage, lambda prompt: "done")}
    queue = names["RedisMailbox"](name="eval-requests", client=names["redis_client"])
    for _ in range(2):
        worker = EvalLoop(loop=names["main_loop"], evaluator=names["evaluator"], requests=queue)
        stage.background(lambda worker=worker: worker.run(wait_time_seconds=1))
        stage.namespace.setdefault("workers", []).append(worker)
    return names


def check_distributed(ns: Names) -> None:
    for worker in ns["workers"]:
        worker.shutdown()
    assert ns["report"].total_samples == 6
    assert ns["report"].pass_rate == 1.0


def fanout(stage: Stage) -> Names:
    kinds = ["analysis", "generation", "other", "analysis"]
    queues = {f"{kind}_queue": Box(name=kind) for kind in ("analysis", "generation", "default")}
    for kind, count in (("analysis", 2), ("generation", 1), ("default", 1)):
        stage.serve(queues[f"{kind}_queue"], lambda task: f"did {task.type}", count)
    tasks = [SimpleNamespace(type=kind) for kind in kinds]
    return {**queues, "tasks": tasks, "results": Box(name="results")}


def check_fanout(ns: Names) -> None:
    done = sorted(ns["collected"])
    assert done == ["did analysis", "did analysis", "did generation", "did other"]


TABLE: dict[int, Entry] = {
    0: Run(lambda stage: {"MainLoopRequest": Request, "MainLoopResult": Result}),
    1: Run(lambda stage: {"process": str.upper}, check_basics),
    2: Run(lambda stage: {"Mailbox": Mailbox}, check_message),
    3: Run(check=counts(requests=0, responses=0)),
    4: Run(lambda stage: answered("task"), check_progress),
    5: Run(
        lambda stage: answered("task"),
        counts(requests=0, responses=2),
        raises=MessageFinalizedError,
    ),
    6: Run(check=counts(mailbox=0)),
    7: Run(on_redis, counts(mailbox=0), needs=("redis",)),
    8: Run(two_kinds, check_two_kinds, needs=("redis",)),
    9: Run(check=lambda ns: has_methods(ns["MailboxResolver"], MailboxResolver)),
    10: Run(on_redis, check_resolver, needs=("redis",)),
    11: Run(on_redis, check_replied, needs=("redis",)),
    12: Run(on_redis, counts(requests=0, client_responses=0), needs=("redis",)),
    13: Run(main_loop, check_main_loop, needs=("redis", "loops")),
    14: Run(eval_loop, check_eval_loop, needs=("redis", "loops", "evals")),
    15: Run(distributed, check_distributed, needs=("redis", "loops", "evals")),
    16: Run(
        lambda stage: {"requests": Box(), "responses": Box(name="responses")},
        counts(requests=1000),
    ),
    17: Run(fanout, check_fanout),
}
