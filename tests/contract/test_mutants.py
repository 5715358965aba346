"""Every test can fail: each deliberately broken store is caught by the contract."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract import mutated
from tests.contract.mutants import CAUGHT_BY, MUTANTS
from weakincentives.contrib.mailbox.contract import MailboxMachine
from weakincentives.contrib.mailbox.contract.driver import Driver

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

MODELLED = sorted(
    set(MUTANTS)
    - {
        # What the model says nothing about: capacity, retention, times of day, waking, minutes,
        # deleted queues, and the place of what was undone.
        "DeleteKeepsIds",
        "DeleteNeedsNoForce",
        "FirstReceiveForgotten",
        "HalfABatch",
        "IdsNeverForgotten",
        "OneTooMany",
        "OnlyPendingCounts",
        "RetentionIgnored",
        "SequelsForgotten",
        "SilentSend",
        "UndoneGoesToTheBack",
    }
)
# Seeds by which the programs that show these come early: any finds them, most of them late.
SEEDS = {"ExpiryNotChecked": 4, "NackGoesToTheFront": 4, "UndoneForgetsTheNacks": 4}


def test_each_broken_store_is_caught() -> None:
    assert sorted(CAUGHT_BY) == sorted(MUTANTS)
    pairs = [*CAUGHT_BY.items(), *(("Unbroken", test) for test in sorted(set(CAUGHT_BY.values())))]
    # In a process of its own: a test that fails on purpose must not fail this run.
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-cov"),
            *("--tb=line", "-rfp"),
            *(f"tests/contract/mutated.py::Test{store}::{test}" for store, test in pairs),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    outcomes = re.findall(r"^(FAILED|PASSED) .*::Test(\w+)::(test_\w+)", run.stdout, re.MULTILINE)
    failed = {(store, test) for outcome, store, test in outcomes if outcome == "FAILED"}
    passed = {(store, test) for outcome, store, test in outcomes if outcome == "PASSED"}
    assert passed == {pair for pair in pairs if pair[0] == "Unbroken"}, run.stdout
    assert failed == set(CAUGHT_BY.items()), run.stdout


@pytest.mark.parametrize("mutant", MODELLED)
def test_the_model_alone_catches_a_broken_store(mutant: str) -> None:
    contract = mutated.TestUnbroken()
    contract.store = MUTANTS[mutant]
    contract.driver = Driver("sync")
    machine = partial(MailboxMachine, contract)
    if mutant in SEEDS:
        seed(SEEDS[mutant])(machine)
    try:
        with pytest.raises(Exception) as caught:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=5000,
                    phases=[Phase.generate],
                    derandomize=True,
                    database=None,
                    deadline=None,
                    print_blob=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
    finally:
        contract.driver.close()
    assert isinstance(caught.value, AssertionError | KeyError | ValueError), caught.value
