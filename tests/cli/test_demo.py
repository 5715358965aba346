"""The demo, and that its table can say no."""

import json
from dataclasses import replace

import pytest

from weakincentives.cli.app import run
from weakincentives.cli.demo.claims import Facts, check
from weakincentives.cli.demo.jobs import Answer

GOOD = Facts(
    sent=[0, 1, 2, 3],
    answers=[Answer(0, 0, 1), Answer(1, 1, 2), Answer(2, 4, 3), Answer(3, 9, 4)],
    left_in_queue=0,
    left_in_dead_letters=0,
    doomed=1,
    flaky=2,
    poison=3,
    redelivered_after=1.6,
    lease=1.5,
    letter_attempts=3,
    letter_error="builtins.ValueError",
    replayed=1,
    exit_codes=[0, 0, 0],
)


@pytest.mark.slow
def test_the_demo_holds_what_it_claims(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--jobs", "120", "--json"]) == 0
    claims = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(claims) == len(check(GOOD))
    assert all(claim["holds"] for claim in claims)


def test_all_claims_hold_of_good_facts() -> None:
    assert all(claim.holds for claim in check(GOOD))


@pytest.mark.parametrize(
    ("bad", "broken"),
    [
        (replace(GOOD, answers=GOOD.answers[:3]), "every job was answered"),
        (replace(GOOD, answers=[*GOOD.answers, GOOD.answers[0]]), "no answer came twice"),
        (replace(GOOD, answers=[*GOOD.answers[:3], Answer(3, 8, 4)]), "every answer is right"),
        (replace(GOOD, left_in_queue=1), "nothing was lost or left behind"),
        (replace(GOOD, left_in_dead_letters=1), "nothing was lost or left behind"),
        (replace(GOOD, redelivered_after=None), "a killed worker's job was taken over"),
        (replace(GOOD, redelivered_after=60.0), "a killed worker's job was taken over"),
        (replace(GOOD, flaky=0), "a job that failed twice succeeded"),
        (replace(GOOD, letter_attempts=None), "a poison job became a dead letter"),
        (replace(GOOD, replayed=2), "its replay was answered"),
        (replace(GOOD, exit_codes=[0, -9]), "workers finished cleanly on SIGTERM"),
    ],
)
def test_each_claim_can_fail(bad: Facts, broken: str) -> None:
    assert broken in [claim.promise for claim in check(bad) if not claim.holds]
