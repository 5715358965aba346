"""The report of a run: its results and the figures computed from them."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError

from .messages import EvalResult
from .statistics import Interval, percentile, wilson

__all__ = ["EvalReport", "TagSummary"]

UNTAGGED = "(untagged)"
VERSION = 1


@FrozenDataclass()
class TagSummary:
    """The figures of the samples with one tag."""

    tag: str
    total: int
    passed: int
    mean_score: float

    @property
    def pass_rate(self) -> float:
        """The fraction of samples that passed."""
        return self.passed / self.total

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the pass rate."""
        return wilson(self.passed, self.total)


@FrozenDataclass()
class EvalReport:
    """The results of a run, one for each sample; an error counts as failed with a score of 0."""

    results: tuple[EvalResult, ...]
    run_id: str | None = None
    expected_count: int = 0
    missing: tuple[str, ...] = ()
    """Ids of samples without a result, if the data set was known."""

    @property
    def total_samples(self) -> int:
        """How many samples have a result."""
        return len(self.results)

    @property
    def missing_count(self) -> int:
        """How many samples have no result."""
        return max(self.expected_count - self.total_samples, len(self.missing))

    @property
    def complete(self) -> bool:
        """Whether no sample is missing."""
        return self.missing_count == 0

    @property
    def passed_count(self) -> int:
        """How many samples passed."""
        return sum(result.passed for result in self.results)

    @property
    def error_count(self) -> int:
        """How many samples ended in an error."""
        return sum(result.error is not None for result in self.results)

    @property
    def pass_rate(self) -> float:
        """The fraction of results that passed; 0 if there are none."""
        return self.passed_count / self.total_samples if self.results else 0.0

    @property
    def pass_rate_interval(self) -> Interval:
        """The 95 % confidence interval of the pass rate (Wilson)."""
        return wilson(self.passed_count, self.total_samples)

    @property
    def mean_score(self) -> float:
        """The mean of all scores; 0 if there are none."""
        return _mean(self.results)

    @property
    def latencies(self) -> list[float]:
        """The latencies that were measured, in milliseconds."""
        return [result.latency_ms for result in self.results if result.latency_ms is not None]

    def latency_percentile(self, share: float) -> float | None:
        """Return a latency percentile in milliseconds (0.95 for p95), or None if there are none."""
        if not 0 <= share <= 1:
            raise InvalidParameterError(f"share must be from 0 to 1, not {share!r}")
        return percentile(self.latencies, share) if self.latencies else None

    def errors_by_type(self) -> dict[str, int]:
        """Return the number of errors for each type name, the most frequent first."""
        kinds = Counter(r.error_type or "unknown" for r in self.results if r.error is not None)
        return dict(sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])))

    def by_tag(self) -> dict[str, TagSummary]:
        """Return the figures for each tag; a sample counts for each of its tags."""
        groups: dict[str, list[EvalResult]] = {}
        for result in self.results:
            for tag in dict.fromkeys(result.tags) or (UNTAGGED,):
                groups.setdefault(tag, []).append(result)
        return {
            tag: TagSummary(tag, len(group), sum(r.passed for r in group), _mean(group))
            for tag, group in sorted(groups.items())
        }

    def failed_samples(self) -> tuple[EvalResult, ...]:
        """Return the results that did not pass, errors included."""
        return tuple(result for result in self.results if not result.passed)

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain JSON values, without the individual results."""
        return {
            "run_id": self.run_id,
            "expected": self.expected_count,
            "total": self.total_samples,
            "passed": self.passed_count,
            "errors": self.error_count,
            "missing": self.missing_count,
            "pass_rate": self.pass_rate,
            "pass_rate_interval": list(self.pass_rate_interval),
            "mean_score": self.mean_score,
            "latency_ms": {
                name: self.latency_percentile(share)
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
            },
            "errors_by_type": self.errors_by_type(),
            "tags": {
                tag: {
                    "total": one.total,
                    "passed": one.passed,
                    "pass_rate": one.pass_rate,
                    "mean_score": one.mean_score,
                }
                for tag, one in self.by_tag().items()
            },
        }

    def to_json(self) -> str:
        """Return the report as JSON; `from_json` reads it back."""
        whole = {
            "version": VERSION,
            "summary": self.summary(),
            "missing": self.missing,
            "results": self.results,
        }
        return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes, source: str = "the text") -> "EvalReport":
        """Read a report that `to_json` wrote."""
        try:
            stored = msgspec.json.decode(text, type=_Stored)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidParameterError(f"{source} is not a report: {error}") from error
        if stored.version != VERSION:
            raise InvalidParameterError(
                f"{source} is a report of version {stored.version}; only version {VERSION} is "
                f"supported"
            )
        summary = stored.summary
        return EvalReport(stored.results, summary.run_id, summary.expected, stored.missing)

    @staticmethod
    def load(path: Path) -> "EvalReport":
        """Read a report from a file."""
        try:
            return EvalReport.from_json(path.read_bytes(), str(path))
        except OSError as error:
            raise InvalidParameterError(
                f"{path} cannot be read: {error.strerror or error}"
            ) from error

    def to_markdown(self) -> str:
        """Return a short report as Markdown, for a pull request or a chat."""
        from .formats import markdown

        return markdown(self)

    def to_junit_xml(self) -> str:
        """Return the report as JUnit XML for CI servers, with one test case per sample."""
        from .formats import junit_xml

        return junit_xml(self)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page with plots and without scripts."""
        from .html_report import page

        return page(self)


class _Summary(msgspec.Struct):
    run_id: str | None
    expected: int


class _Stored(msgspec.Struct):
    version: int
    summary: _Summary
    missing: tuple[str, ...]
    results: tuple[EvalResult, ...]


def _mean(results: Iterable[EvalResult]) -> float:
    values = [result.score.value for result in results]
    return math.fsum(values) / len(values) if values else 0.0
