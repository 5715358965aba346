"""The demo's claims, checked against what happened, without any I/O."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.cli.output import counted

from .jobs import ATTEMPTS, Answer

__all__ = ["Claim", "Facts", "check"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A promise, what was seen, and whether the promise holds."""

    promise: str
    seen: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened in one run of the demo."""

    sent: Sequence[int]
    answers: Sequence[Answer]
    left_in_queue: int
    left_in_dead_letters: int
    doomed: int
    flaky: int
    poison: int
    redelivered_after: float | None
    lease: float
    letter_attempts: int | None
    letter_error: str | None
    replayed: int
    exit_codes: Sequence[int]


def check(facts: Facts) -> list[Claim]:
    """Return every claim, with whether it holds."""
    times = Counter(answer.number for answer in facts.answers)
    missing = [number for number in facts.sent if number not in times]
    twice = [number for number, count in times.items() if count > 1]
    wrong = [a.number for a in facts.answers if a.square != a.number**2]
    by_number = {answer.number: answer for answer in facts.answers}
    after = facts.redelivered_after
    return [
        Claim(
            "every job was answered",
            f"{len(facts.sent)} sent, {len(times)} answered",
            not missing and len(times) == len(facts.sent),
        ),
        Claim("no answer came twice", f"{len(twice)} answered twice", not twice),
        Claim("every answer is right", f"{len(wrong)} wrong", not wrong),
        Claim(
            "nothing was lost or left behind",
            f"{facts.left_in_queue} in the queue, {facts.left_in_dead_letters} dead letters",
            facts.left_in_queue == 0 and facts.left_in_dead_letters == 0,
        ),
        Claim(
            "a killed worker's job was taken over",
            "never"
            if after is None
            else f"after {after * 1000:.0f} ms (its lease: {facts.lease * 1000:.0f} ms)",
            # The promise is lease + 1 s; a busy machine may take its time to run the process.
            after is not None and after <= 10 * (facts.lease + 1) and facts.doomed in by_number,
        ),
        Claim(
            "a job that failed twice succeeded",
            _attempt(by_number.get(facts.flaky)),
            facts.flaky in by_number and by_number[facts.flaky].attempt == ATTEMPTS,
        ),
        Claim(
            "a poison job became a dead letter",
            "no letter"
            if facts.letter_attempts is None
            else f"after {counted(facts.letter_attempts, 'attempt')}: {facts.letter_error}",
            facts.letter_attempts == ATTEMPTS,
        ),
        Claim(
            "its replay was answered",
            f"{facts.replayed} replayed, {_attempt(by_number.get(facts.poison))}",
            facts.replayed == 1 and facts.poison in by_number,
        ),
        Claim(
            "workers finished cleanly on SIGTERM",
            f"exit codes {', '.join(map(str, facts.exit_codes))}",
            all(code == 0 for code in facts.exit_codes),
        ),
    ]


def _attempt(answer: Answer | None) -> str:
    return "not answered" if answer is None else f"answered at attempt {answer.attempt}"
