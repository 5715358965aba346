"""The report: its figures, its formats, and the comparison of two."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.evals.loops import result
from weakincentives.evals import EvalReport, EvalResult, Score, compare
from weakincentives.evals.formats import milliseconds, percent
from weakincentives.evals.plots import binned, latency_plot, score_plot, tag_plot
from weakincentives.evals.statistics import (
    _student,
    difference_interval,
    mcnemar,
    percentile,
    sign_flip,
    wilson,
)
from weakincentives.runtime import InvalidParameterError

NASTY = "</style><script>alert(1)</script>\x00\x1b[31m|`*\ud800 & 'ü'"

# How the score of a sample may differ between two runs: what few pairs show badly is among it.
SCORE_CHANGES: dict[str, Callable[[random.Random], float]] = {
    "anything": lambda rng: rng.uniform(-1, 1),
    "rarely all": lambda rng: -1.0 if rng.random() < 0.1 else rng.uniform(0, 0.05),
    "rarely much": lambda rng: 0.9 if rng.random() < 0.05 else 0.0,
    "marks": lambda rng: rng.randint(0, 10) / 10 - rng.randint(5, 10) / 10,
    "skewed": lambda rng: rng.random() ** 6 - 0.1,
    "passes": lambda rng: float(rng.choice([-1, 0, 0, 1, 1])),
}


def report(*results: Any, **more: Any) -> EvalReport:
    return EvalReport(tuple(results), more.pop("run_id", "run-1"), **more)


def sample_report() -> EvalReport:
    return report(
        result("a", 1.0, tags=("math", "easy"), latency_ms=10.0),
        result("b", 0.4, tags=("math",), latency_ms=30.0, reason="too short", output="hm"),
        result("c", 0.0, error="TimeoutError (ref x)", error_type="TimeoutError", latency_ms=None),
        result("d", 0.9, latency_ms=20.0),
        expected_count=6,
        missing=("e", "f"),
    )


def test_figures() -> None:
    found = sample_report()
    assert (found.total_samples, found.passed_count, found.error_count) == (4, 2, 1)
    assert found.pass_rate == 0.5
    assert found.mean_score == pytest.approx(0.575)
    assert found.latency_percentile(0.5) == 20.0
    assert found.latency_percentile(1) == 30.0
    assert found.errors_by_type() == {"TimeoutError": 1}
    assert [one.sample_id for one in found.failed_samples()] == ["b", "c"]
    assert (found.missing_count, found.complete) == (2, False)
    tags = found.by_tag()
    assert list(tags) == ["(untagged)", "easy", "math"]
    assert (tags["math"].total, tags["math"].passed, tags["math"].mean_score) == (2, 1, 0.7)
    with pytest.raises(InvalidParameterError):
        found.latency_percentile(95)


def test_an_empty_report_has_figures_and_formats() -> None:
    empty = report(expected_count=2)
    assert (empty.pass_rate, empty.mean_score, empty.latency_percentile(0.5)) == (0.0, 0.0, None)
    assert empty.pass_rate_interval == (0.0, 1.0)
    assert "2 of 2 samples have no result" in empty.to_html()
    assert "| missing | 2 |" in empty.to_markdown()
    assert ElementTree.fromstring(empty.to_junit_xml()).get("errors") == "2"
    assert EvalReport.from_json(empty.to_json()) == empty


def test_json_is_read_back_equal() -> None:
    found = sample_report()
    assert EvalReport.from_json(found.to_json()) == found
    assert found.summary()["latency_ms"]["p50"] == 20.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "\xff"])
def test_what_is_no_report_is_told(text: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"old\.json is not a report"):
        EvalReport.from_json(text, "old.json")


def test_a_report_of_the_future_is_told() -> None:
    with pytest.raises(InvalidParameterError, match="version 2"):
        EvalReport.from_json(sample_report().to_json().replace('"version": 1', '"version": 2'))


def test_junit() -> None:
    suite = ElementTree.fromstring(sample_report().to_junit_xml())
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "6",
        "failures": "1",
        "errors": "3",
    }
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == ["a", "b", "c", "d", "e", "f"]
    assert cases["a"].get("classname") == "eval.math"
    failure = cases["b"].find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("too short", "hm")
    error = cases["e"].find("error")
    assert error is not None
    assert error.get("type") == "missing"


def test_markdown() -> None:
    text = sample_report().to_markdown()
    assert "| pass rate | 50.0% |" in text
    assert "| math | 1 of 2 | 50.0% | 0.700 |" in text
    assert "| b | 0.40 | too short |" in text
    assert text.endswith("## Missing\n\ne, f\n")


def nasty_report() -> EvalReport:
    many = [
        result(f"{NASTY}{n}", 0.0, reason=NASTY, output=NASTY, tags=(NASTY,)) for n in range(300)
    ]
    error = result("z", 0.0, error=NASTY, error_type=NASTY)
    return report(*many, error, run_id=NASTY, expected_count=1000, missing=(NASTY,))


def test_foreign_text_stays_text() -> None:
    nasty = nasty_report()
    page = nasty.to_html()
    assert "<script" not in page
    assert page.count("</style>") == 1
    assert "and 101 more" in page
    page.encode("utf-8")
    suite = ElementTree.fromstring(nasty.to_junit_xml().encode("utf-8"))
    assert len(suite) == 1000
    rows = [line for line in nasty.to_markdown().splitlines() if line.startswith("|")]
    assert all("<script>" not in row for row in rows)
    assert "and 251 more" in nasty.to_markdown()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = sample_report().to_html()
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    assert "src=" not in page
    assert "default-src 'none'" in page
    for plot in ("plot-scores", "plot-latencies", "plot-tags"):
        assert page.count(f'id="{plot}"') == 1


@pytest.mark.parametrize("seed", range(20))
def test_plots_are_drawn_of_any_figures(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.lognormvariate(rng.uniform(-8, 12), 3) for _ in range(rng.randint(1, 300))]
    drawn = latency_plot([*values, 0.0])
    ElementTree.fromstring(drawn)
    assert "nan" not in drawn
    ElementTree.fromstring(score_plot([min(value, 1.0) for value in values]))


def test_many_tags_are_cut_and_told() -> None:
    results = [result(str(n), tags=(f"tag {n:03}",)) for n in range(50)]
    drawn = tag_plot(list(report(*results).by_tag().values()))
    ElementTree.fromstring(drawn)
    assert "and 10 more tags" in drawn


def test_bins_hold_every_value() -> None:
    bins = binned([0.0, 0.1, 0.5, 1.0, 7.0, -1.0], 0.0, 1.0, 10)
    assert [bin.samples for bin in bins] == [2, 1, 0, 0, 0, 1, 0, 0, 0, 2]


def test_what_people_read() -> None:
    assert [percent(share) for share in (0, 1, 0.5, 0.9999, 0.0001)] == [
        "0.0%",
        "100.0%",
        "50.0%",
        ">99.9%",
        "<0.1%",
    ]
    assert [milliseconds(value) for value in (None, 0.057, 5.25, 1234.5, 61_000)] == [
        "-",
        "0.057 ms",
        "5.2 ms",
        "1,234 ms",
        "61.0 s",
    ]


class TestStatistics:
    def test_wilson(self) -> None:
        # 81 of 263: the example of Newcombe's 1998 paper.
        low, high = wilson(81, 263)
        assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
        assert wilson(0, 20) == (0.0, pytest.approx(0.1611, abs=1e-4))
        assert wilson(20, 20)[1] == 1.0

    def test_percentiles(self) -> None:
        assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
        assert percentile([7.0], 0.99) == 7.0

    @pytest.mark.parametrize(("broken", "fixed"), [(0, 0), (1, 0), (3, 9), (10, 10), (40, 75)])
    def test_mcnemar_is_the_two_sided_binomial(self, broken: int, fixed: int) -> None:
        changed = broken + fixed
        tail = sum(math.comb(changed, n) for n in range(min(broken, fixed) + 1))
        assert mcnemar(broken, fixed) == pytest.approx(min(1.0, 2 * tail / 2**changed))
        assert mcnemar(broken, fixed) == mcnemar(fixed, broken)

    def test_mcnemar_of_large_runs(self) -> None:
        assert mcnemar(5000, 5000) == 1.0
        assert mcnemar(4000, 6000) < 1e-80
        assert mcnemar(0, 3000) == 0.0
        # By the normal approximation with continuity correction: z = (5100 - 4900 - 1) / 100.
        assert mcnemar(4900, 5100) == pytest.approx(0.0466, abs=0.001)

    @pytest.mark.parametrize("pairs", [3, 5, 7, 10])
    def test_the_interval_of_pass_rates_holds_for_few_pairs(self, pairs: int) -> None:
        """Coverage is summed up over all outcomes: for each pair of chances, to be exact."""
        worst = 1.0
        intervals = {
            (fixed, broken): difference_interval(
                [1.0] * fixed + [-1.0] * broken + [0.0] * (pairs - fixed - broken)
            )
            for fixed in range(pairs + 1)
            for broken in range(pairs + 1 - fixed)
        }
        for better, worse in itertools.product(range(11), repeat=2):
            if better + worse > 10:
                continue
            up, down = better / 10, worse / 10
            covered = sum(
                math.comb(pairs, fixed)
                * math.comb(pairs - fixed, broken)
                * up**fixed
                * down**broken
                * (1 - up - down + 1e-15) ** (pairs - fixed - broken)
                for (fixed, broken), (low, high) in intervals.items()
                if low <= up - down <= high
            )
            worst = min(worst, covered)
        assert worst >= 0.93

    @pytest.mark.parametrize("pairs", [5, 10, 40])
    @pytest.mark.parametrize("kind", SCORE_CHANGES)
    def test_the_interval_of_mean_scores_holds_for_few_pairs(self, kind: str, pairs: int) -> None:
        rng, draw = random.Random(pairs), SCORE_CHANGES[kind]
        true = math.fsum(draw(rng) for _ in range(50_000)) / 50_000
        covered = 0
        for _ in range(400):
            low, high = difference_interval([draw(rng) for _ in range(pairs)])
            covered += low <= true <= high
        assert covered >= 0.93 * 400

    def test_pairs_that_agree_are_not_certain(self) -> None:
        low, high = difference_interval([0.0] * 5)
        assert low < -0.4
        assert high > 0.4
        low, high = difference_interval([0.0] * 1000)
        assert -0.01 < low < 0 < high < 0.01
        assert difference_interval([1.0]) == (-1.0, 1.0)

    def test_students_quantile(self) -> None:
        assert [round(_student(n), 2) for n in (3, 5, 10, 30)] == [3.18, 2.57, 2.23, 2.04]

    @pytest.mark.parametrize(("broken", "fixed"), [(0, 0), (1, 0), (0, 6), (3, 9), (7, 9)])
    def test_of_passes_the_permutation_test_is_mcnemars(self, broken: int, fixed: int) -> None:
        changes = [-1.0] * broken + [1.0] * fixed + [0.0] * 5
        assert sign_flip(changes) == pytest.approx(mcnemar(broken, fixed))

    def test_random_patterns_and_the_normal_curve_agree_with_mcnemar(self) -> None:
        changes = [-1.0] * 40 + [1.0] * 60
        assert sign_flip(changes) == pytest.approx(mcnemar(40, 60), abs=0.015)
        assert sign_flip(changes) == sign_flip(changes) != sign_flip(changes, seed=1)
        many = [-1.0] * 4900 + [1.0] * 5100
        assert sign_flip(many) == pytest.approx(mcnemar(4900, 5100), abs=0.002)

    def test_a_few_large_changes_among_many_tiny_ones_are_few(self) -> None:
        """The normal curve would call it significant: 0.0455."""
        tiny = [1e-6, -1e-6] * 5000
        assert sign_flip([1.0] * 4 + tiny) == pytest.approx(0.0625, abs=0.012)

    def test_false_alarms_are_rare(self) -> None:
        rng = random.Random(3)
        alarms = sum(sign_flip([rng.uniform(-1, 1) for _ in range(9)]) < 0.05 for _ in range(400))
        assert alarms <= 400 * 0.08


class TestCompare:
    def runs(self, count: int, broken: int, fixed: int) -> tuple[EvalReport, EvalReport]:
        before = [result(f"{n:03}", 0.0 if n < fixed else 1.0) for n in range(count)]
        after = [
            replace(one, score=result("", 0.0 if fixed <= n < fixed + broken else 1.0).score)
            for n, one in enumerate(before)
        ]
        return report(*before), report(*after)

    def test_what_changed(self) -> None:
        a, b = self.runs(100, broken=2, fixed=12)
        b = EvalReport((*b.results[:-1], result("new")), "b")
        found = compare(a, b)
        assert found.fixed == tuple(f"{n:03}" for n in range(12))
        assert found.broken == ("012", "013")
        assert (found.only_in_a, found.only_in_b, found.common) == (("099",), ("new",), 99)
        assert found.pass_rate_difference == pytest.approx(10 / 99)
        assert found.pass_rate_interval.low < 10 / 99 < found.pass_rate_interval.high
        assert found.p_value == pytest.approx(mcnemar(2, 12))
        assert (found.significant, found.verdict) == (True, "better")
        assert compare(a, b) == found

    def test_worse_and_no_difference(self) -> None:
        assert compare(*self.runs(100, broken=12, fixed=2)).verdict == "worse"
        assert compare(*self.runs(100, broken=3, fixed=5)).verdict == "no significant difference"
        same = compare(*self.runs(100, broken=0, fixed=0))
        assert (same.p_value, same.score_p_value) == (1.0, 1.0)
        assert same.pass_rate_interval.low < 0 < same.pass_rate_interval.high

    def scored(self, *changes: float, passes: bool = True) -> tuple[EvalReport, EvalReport]:
        def run(values: list[float]) -> EvalReport:
            return report(
                *(EvalResult(f"{n}", Score(value, passes)) for n, value in enumerate(values))
            )

        return run([0.5] * len(changes)), run([0.5 + change for change in changes])

    def test_scores_are_tested_where_the_pass_rate_did_not_change(self) -> None:
        worse = compare(*self.scored(*[-0.1, -0.2, -0.1, -0.3] * 3))
        assert worse.p_value == 1.0
        assert worse.score_p_value < 0.01
        assert (worse.significant, worse.verdict) == (True, "worse")
        assert compare(*self.scored(*[0.1] * 12)).verdict == "better"
        assert not compare(*self.scored(*[0.1, -0.1] * 6)).significant

    def test_two_tests_are_not_two_chances(self) -> None:
        """Of two p-values only one below 0.05 does not do; one below 0.025 does."""
        found = compare(*self.runs(100, broken=0, fixed=8))
        assert not replace(found, p_value=0.04, score_p_value=0.3).significant
        assert replace(found, p_value=0.02, score_p_value=0.3).verdict == "better"
        assert replace(found, p_value=0.04, score_p_value=0.045).verdict == "better"

    def test_more_passes_with_lower_scores_are_mixed(self) -> None:
        found = compare(*self.runs(100, broken=0, fixed=8))
        found = replace(found, mean_score_a=0.9, mean_score_b=0.8)
        assert found.verdict == "mixed"

    def test_runs_without_a_common_sample(self) -> None:
        with pytest.raises(InvalidParameterError, match="no sample in common"):
            compare(report(result("a")), report(result("b")))
