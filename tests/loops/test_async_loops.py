"""The loops that are built on a Worker, with async adapters, evaluators and handlers."""

import asyncio
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives.adapters import CallableAdapter, PromptResponse
from weakincentives.evals import (
    EvalLoop,
    EvalRequest,
    Sample,
    Score,
    all_of,
    any_of,
    exact_match,
    llm_judge,
)
from weakincentives.runtime import (
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    LoopGroup,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    Session,
    UnsupportedOperationError,
    Worker,
    WorkerConfig,
)


class Crowd:
    """Notes how many calls are under way at once."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def stay(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.02)
        self.inside -= 1


def upper(crowd: Crowd) -> CallableAdapter[str]:
    async def evaluate(prompt: Any) -> str:
        await crowd.stay()
        return str(prompt.params).upper()

    return CallableAdapter(evaluate)


# --- MainLoop --------------------------------------------------------------------------------


def test_requests_to_an_async_adapter_are_tasks_of_one_loop(box):
    crowd = Crowd()
    loop: MainLoop[str, str] = MainLoop(
        adapter=upper(crowd), requests=box, config=MainLoopConfig(concurrency=50)
    )
    replies = [box.send_expecting_reply(MainLoopRequest(request=f"r{n}")) for n in range(50)]
    with in_background(loop):
        assert [reply.wait(timeout=120).output for reply in replies] == [f"R{n}" for n in range(50)]
    assert crowd.most > 10


def test_a_class_with_an_async_evaluate_is_an_async_adapter(box):
    class Adapter:
        async def evaluate(self, prompt, *, session, deadline=None, budget=None):
            await asyncio.sleep(0)
            return PromptResponse(prompt.name, output=prompt.params)

    loop: MainLoop[Any, Any] = MainLoop(adapter=Adapter(), requests=box)
    assert loop.is_async
    reply = box.send_expecting_reply(MainLoopRequest(request=1))
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert reply.wait(timeout=120).output == 1


def test_an_async_adapter_that_fails_is_answered_with_an_error(box):
    async def fails(prompt):
        raise LookupError("no model")

    loop: MainLoop[Any, Any] = MainLoop(adapter=CallableAdapter(fails), requests=box)
    reply = box.send_expecting_reply(MainLoopRequest(request=1))
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert reply.wait(timeout=120).error.startswith("LookupError")


def test_execute_async_runs_any_adapter_and_execute_no_async_one(box):
    plain: MainLoop[str, str] = MainLoop(
        adapter=CallableAdapter(lambda prompt: prompt.params.upper()), requests=box
    )
    awaited: MainLoop[str, str] = MainLoop(adapter=upper(Crowd()), requests=box)

    async def both():
        return [(await loop.execute_async("a"))[0].output for loop in (plain, awaited)]

    assert asyncio.run(both()) == ["A", "A"]
    with pytest.raises(UnsupportedOperationError, match="execute_async"):
        awaited.execute("a")


def test_run_async_serves_beside_other_tasks(box):
    async def main():
        loop: MainLoop[str, str] = MainLoop(adapter=upper(Crowd()), requests=box)
        running = asyncio.create_task(loop.run_async())
        reply = await box.send_expecting_reply_async(MainLoopRequest(request="a"))
        result = await reply.wait_async(timeout=120)
        assert await loop.shutdown_async(timeout=120)
        await running
        return result.output

    assert asyncio.run(main()) == "A"


# --- EvalLoop --------------------------------------------------------------------------------


async def near(output: str, expected: str, session: Session) -> Score:
    await asyncio.sleep(0)
    return Score(1.0 if output == expected else 0.5, output == expected, "near")


async def returns_text(output: str, expected: str) -> Any:
    return "good"


@pytest.mark.parametrize("plain_adapter", [False, True])
@pytest.mark.parametrize(
    ("evaluator", "passed"),
    [
        (near, [True, False]),
        (exact_match, [True, False]),
        (all_of(near, exact_match), [True, False]),
        (any_of(near, lambda output, expected: True), [True, True]),
        (llm_judge(CallableAdapter(lambda prompt: Score(1.0, True)), "any"), [True, True]),
        (llm_judge(upper(Crowd()), "any"), [False, False]),
        (returns_text, [False, False]),
    ],
)
def test_samples_are_scored_whatever_is_async(box, evaluator, passed, plain_adapter):
    adapter: Any = (
        CallableAdapter(lambda prompt: prompt.params.upper()) if plain_adapter else upper(Crowd())
    )
    main: MainLoop[str, str] = MainLoop(adapter=adapter, requests=InMemoryMailbox("main"))
    loop: EvalLoop[str, str, str] = EvalLoop(loop=main, evaluator=evaluator, requests=box)
    samples = [Sample(id="1", input="a", expected="A"), Sample(id="2", input="b", expected="C")]
    replies = [
        box.send_expecting_reply(EvalRequest(sample=sample, run_id="run")) for sample in samples
    ]
    loop.run(max_iterations=2, wait_time_seconds=0)
    results = [reply.wait(timeout=120) for reply in replies]
    assert [result.score.passed for result in results] == passed
    if evaluator is returns_text:
        assert all(result.error.startswith("Evaluator failed: TypeError") for result in results)


# --- DLQConsumer and LoopGroup ---------------------------------------------------------------


def test_a_consumer_of_dead_letters_and_a_group_run_async_handlers(box):
    letters = InMemoryMailbox("letters")
    crowd, seen = Crowd(), []

    async def handle(body):
        await crowd.stay()

    async def bury(letter: DeadLetter[Any]) -> None:
        await asyncio.sleep(0)
        seen.append(letter.body)

    async def fails(body):
        raise ValueError

    poison = InMemoryMailbox("poison")
    group = LoopGroup(
        [
            Worker(box, handle, config=WorkerConfig(concurrency=20)),
            Worker(poison, fails, dlq=DLQPolicy(letters, max_delivery_count=1)),
            DLQConsumer(mailbox=letters, handler=bury),
        ]
    )
    box.send_batch(list(range(20)))
    poison.send("x")
    with in_background(group, install_signals=False):
        eventually(lambda: seen == ["x"] and box.stats().total == 0)
    assert crowd.most > 5
