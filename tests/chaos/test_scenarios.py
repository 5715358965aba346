"""Every scenario, at its short scale: nothing lost, nothing doubled, nothing stale accepted."""

import gc
import os
import warnings

import pytest

from chaos.faketime import ELSEWHERE
from chaos.scenarios import all_scenarios
from chaos.stage import Scenario
from tests.services import missing

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("WINK_CHAOS_SEED", "8"))

# What not every machine can offer, also in CI: a moved clock, but for Linux on x86-64, and a disk
# of one's own.
OPTIONAL = (ELSEWHERE, "mounted")


@pytest.mark.parametrize("scenario", all_scenarios().values(), ids=lambda one: one.key)
def test_scenario(scenario: Scenario) -> None:
    with warnings.catch_warnings():
        if "asyncio" in scenario.key:
            # An event loop that ends while it connects drops its socket, and says nothing else.
            warnings.simplefilter("ignore", ResourceWarning)
        result = scenario(SEED, "short")
        gc.collect()  # so that what a scenario left open is found here, not in another test
    if any(word in result.not_run for word in OPTIONAL):
        pytest.skip(f"NOT RUN: {result.not_run}")
    if result.not_run:
        missing(result.not_run)
    assert result.violations == []
    assert result.trials > 0
