"""The report: its figures, its formats, and the comparison of two."""

import math
import random
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.evals.loops import result
from weakincentives.evals import EvalReport, compare
from weakincentives.evals.formats import milliseconds, percent
from weakincentives.evals.plots import binned, latency_plot, score_plot, tag_plot
from weakincentives.evals.statistics import bootstrap_means, mcnemar, percentile, wilson
from weakincentives.runtime import InvalidParameterError

NASTY = "</style><script>alert(1)</script>\x00\x1b[31m|`*\ud800 & 'ü'"


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
    with pytest.raises(InvalidParameterError, match=r"old\.json is no report"):
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

    def test_the_bootstrap_covers_the_truth(self) -> None:
        covered = 0
        for seed in range(60):
            rng = random.Random(1000 + seed)
            pairs = [(rng.gauss(0.2, 1), 0.0) for _ in range(60)]
            (low, high), zero = bootstrap_means(pairs, seed=seed, resamples=300)
            covered += low <= 0.2 <= high
            assert zero == (0.0, 0.0)
        assert covered >= 51  # 95 % of 60 is 57

    def test_the_same_seed_gives_the_same_interval(self) -> None:
        pairs = [(float(n % 3 == 0), n / 30) for n in range(30)]
        assert bootstrap_means(pairs, seed=7) == bootstrap_means(pairs, seed=7)
        assert bootstrap_means(pairs, seed=7) != bootstrap_means(pairs, seed=8)


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
        assert (same.p_value, same.pass_rate_interval) == (1.0, (0.0, 0.0))

    def test_runs_without_a_common_sample(self) -> None:
        with pytest.raises(InvalidParameterError, match="no sample in common"):
            compare(report(result("a")), report(result("b")))
