"""Two runs over the same samples: what changed, and whether that means anything."""

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError

from .report import EvalReport
from .statistics import Interval, bootstrap_means, mcnemar

__all__ = ["Comparison", "compare"]

SIGNIFICANT = 0.05


@FrozenDataclass()
class Comparison:
    """How run ``b`` differs from run ``a`` on the samples that both have."""

    common: int
    """How many samples both runs have."""
    fixed: tuple[str, ...]
    """Samples that only ``b`` passes."""
    broken: tuple[str, ...]
    """Samples that only ``a`` passes."""
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    pass_rate_a: float
    pass_rate_b: float
    mean_score_a: float
    mean_score_b: float
    p_value: float
    """McNemar's exact test: how likely so uneven a change would be if nothing had changed."""
    pass_rate_interval: Interval
    """The 95 % bootstrap interval of the difference of the pass rates."""
    mean_score_interval: Interval
    """The 95 % bootstrap interval of the difference of the mean scores."""

    @property
    def pass_rate_difference(self) -> float:
        """The pass rate of ``b`` less that of ``a``."""
        return self.pass_rate_b - self.pass_rate_a

    @property
    def mean_score_difference(self) -> float:
        """The mean score of ``b`` less that of ``a``."""
        return self.mean_score_b - self.mean_score_a

    @property
    def significant(self) -> bool:
        """Whether chance alone would rarely (less than once in 20 times) do this."""
        return self.p_value < SIGNIFICANT

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no significant difference``."""
        if not self.significant:
            return "no significant difference"
        return "better" if len(self.fixed) > len(self.broken) else "worse"


def compare(a: EvalReport, b: EvalReport, *, seed: int = 0) -> Comparison:
    """Compare two runs sample by sample; the same seed gives the same intervals."""
    before = {result.sample_id: result for result in a.results}
    after = {result.sample_id: result for result in b.results}
    common = [id for id in before if id in after]
    if not common:
        raise InvalidParameterError("the two runs have no sample in common")
    pairs = [
        (
            float(after[id].passed) - float(before[id].passed),
            after[id].score.value - before[id].score.value,
        )
        for id in common
    ]
    fixed = tuple(id for id in common if after[id].passed and not before[id].passed)
    broken = tuple(id for id in common if before[id].passed and not after[id].passed)
    pass_rates, mean_scores = bootstrap_means(pairs, seed=seed)
    size = len(common)
    return Comparison(
        common=size,
        fixed=fixed,
        broken=broken,
        only_in_a=tuple(id for id in before if id not in after),
        only_in_b=tuple(id for id in after if id not in before),
        pass_rate_a=sum(before[id].passed for id in common) / size,
        pass_rate_b=sum(after[id].passed for id in common) / size,
        mean_score_a=sum(before[id].score.value for id in common) / size,
        mean_score_b=sum(after[id].score.value for id in common) / size,
        p_value=mcnemar(len(broken), len(fixed)),
        pass_rate_interval=pass_rates,
        mean_score_interval=mean_scores,
    )
