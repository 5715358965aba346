"""Every test can fail: each deliberately broken store is caught by the contract."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract import mutated
from tests.contract.mutants import MUTANTS
from weakincentives.contrib.mailbox.contract import MailboxMachine
from weakincentives.contrib.mailbox.contract.driver import Driver

ROOT = Path(__file__).parents[2]
MODELLED = sorted(
    set(MUTANTS)
    - {
        # What the model says nothing about: capacity, retention, times of day, waking, and minutes.
        "FirstReceiveForgotten",
        "HalfABatch",
        "IdsNeverForgotten",
        "OneTooMany",
        "OnlyPendingCounts",
        "RetentionIgnored",
        "SilentSend",
    }
)


def run_contract(mutant: str, tests: str) -> subprocess.CompletedProcess[str]:
    """Run the same tests as everybody, on the store of this name, in a process of its own."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-cov"),
            *("--tb=line", "-rf", "-k", tests, "tests/contract/mutated.py"),
        ],
        cwd=ROOT,
        env={**os.environ, "MUTANT": mutant, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_unbroken_store_passes() -> None:
    run = run_contract("none", "test")
    assert run.returncode == 0, run.stdout
    assert re.search(r"\d\d\d passed", run.stdout)


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_broken_store_is_caught(mutant: str) -> None:
    # Without the state machine, which is asked below: neither shall hide behind the other.
    run = run_contract(mutant, "not random_programs")
    assert run.returncode == 1, run.stdout
    assert "FAILED tests/contract/mutated.py::TestMutated::test_" in run.stdout


@pytest.mark.parametrize("mutant", MODELLED)
def test_the_model_alone_catches_a_broken_store(mutant: str) -> None:
    contract = mutated.TestMutated()
    contract.mutant = mutant
    contract.driver = Driver("sync")
    try:
        with pytest.raises(Exception) as caught:
            run_state_machine_as_test(
                partial(MailboxMachine, contract),
                settings=settings(
                    max_examples=500,
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
