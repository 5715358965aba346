"""Every scenario, at its short scale: nothing lost, nothing doubled, nothing stale accepted."""

import os

import pytest
from chaos.scenarios import all_scenarios
from chaos.stage import Scenario

SEED = int(os.environ.get("WINK_CHAOS_SEED", "8"))


@pytest.mark.parametrize("scenario", all_scenarios().values(), ids=lambda one: one.key)
def test_scenario(scenario: Scenario) -> None:
    result = scenario(SEED, "short")
    if result.not_run:
        # What only some machines can offer, such as libfaketime, is missed loudly, also in CI.
        pytest.skip(f"NOT RUN: {result.not_run}")
    assert result.violations == []
    assert result.trials > 0
