"""Compares two runs over the same samples, and tests whether the change is significant."""

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError

from .report import EvalReport
from .statistics import Interval, difference_interval, mcnemar, sign_flip

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
    """McNemar's exact test: how likely it is that chance alone made so uneven a change."""
    pass_rate_interval: Interval
    """The 95 % interval of the difference of the pass rates."""
    mean_score_interval: Interval
    """The 95 % interval of the difference of the mean scores."""
    score_p_value: float
    """The paired permutation test: the same for the mean scores."""

    @property
    def pass_rate_difference(self) -> float:
        """The pass rate of ``b`` minus that of ``a``."""
        return self.pass_rate_b - self.pass_rate_a

    @property
    def mean_score_difference(self) -> float:
        """The mean score of ``b`` minus that of ``a``."""
        return self.mean_score_b - self.mean_score_a

    @property
    def significant(self) -> bool:
        """Whether chance alone would cause such a change in less than 5 % of all cases."""
        return any(self._significant())

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``mixed`` or ``no significant difference``.

        ``mixed``: the pass rate and the mean score changed significantly, in opposite directions.
        """
        passes, scores = self._significant()
        signs = set()
        if passes:
            signs.add(len(self.fixed) > len(self.broken))
        if scores:
            signs.add(self.mean_score_difference > 0)
        if not signs:
            return "no significant difference"
        if len(signs) == 2:
            return "mixed"
        return "better" if signs.pop() else "worse"

    def _significant(self) -> tuple[bool, bool]:
        """Return whether the pass rates and the mean scores differ, by Hochberg's rule."""
        # Two tests are two chances for a false alarm. Requiring both p-values below the level, or
        # one below half of it, keeps the risk for both together at that level.
        both = max(self.p_value, self.score_p_value) < SIGNIFICANT
        level = SIGNIFICANT if both else SIGNIFICANT / 2
        return self.p_value < level, self.score_p_value < level


def compare(a: EvalReport, b: EvalReport, *, seed: int = 0) -> Comparison:
    """Compare two runs sample by sample; the same seed gives the same p-values."""
    before = {result.sample_id: result for result in a.results}
    after = {result.sample_id: result for result in b.results}
    common = [id for id in before if id in after]
    if not common:
        raise InvalidParameterError("the two runs have no sample in common")
    fixed = tuple(id for id in common if after[id].passed and not before[id].passed)
    broken = tuple(id for id in common if before[id].passed and not after[id].passed)
    passes = [float(after[id].passed) - float(before[id].passed) for id in common]
    scores = [after[id].score.value - before[id].score.value for id in common]
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
        pass_rate_interval=difference_interval(passes),
        mean_score_interval=difference_interval(scores),
        score_p_value=sign_flip(scores, seed=seed),
    )
