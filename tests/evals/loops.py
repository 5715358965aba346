"""Loops and data sets of these tests; importable, so that worker processes find them too."""

from typing import Any

from weakincentives.adapters import CallableAdapter
from weakincentives.evals import Dataset, EvalLoop, EvalResult, Sample, Score, exact_match
from weakincentives.runtime import InMemoryMailbox, MainLoop, Message

QUEUE = "eval-requests"


def add(text: str) -> str:
    one, other = text.split("+")
    return str(int(one) + int(other))


def sums(count: int) -> Dataset[str, str]:
    return Dataset(
        tuple(
            Sample(f"sum-{n}", f"{n}+{n}", str(2 * n), ("even" if n % 2 == 0 else "odd",))
            for n in range(count)
        )
    )


def main_loop(answer: Any = add, **options: Any) -> MainLoop[str, str]:
    adapter = CallableAdapter(lambda prompt: answer(prompt.params))
    return MainLoop[str, str](adapter=adapter, requests=InMemoryMailbox("unused"), **options)


def eval_loop(requests: Any, answer: Any = add, **options: Any) -> EvalLoop[str, str, str]:
    options.setdefault("evaluator", exact_match)
    return EvalLoop(loop=main_loop(answer), requests=requests, **options)


def trivial(backend: Any) -> EvalLoop[str, str, str]:
    """What worker processes serve."""
    return eval_loop(backend.mailbox(QUEUE))


def result(id: str, value: float = 1.0, **more: Any) -> EvalResult:
    """A result as a worker would send it; it passes from 0.5 on."""
    more.setdefault("latency_ms", 10.0)
    return EvalResult(id, Score(value, value >= 0.5, more.pop("reason", None)), **more)


def bodies(mailbox: Any) -> list[Any]:
    """Receive everything that is there."""
    found: list[Message[Any, Any]] = mailbox.receive(max_messages=1000)
    return [message.body for message in found]
