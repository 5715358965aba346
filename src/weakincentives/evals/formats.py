"""Formats a report as Markdown and as JUnit XML."""

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

if TYPE_CHECKING:
    from .report import EvalReport

__all__ = ["junit_xml", "markdown", "milliseconds", "percent"]

SHOWN = 50
SHOWN_TEXT = 200

# XML 1.0 cannot contain these characters, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


def percent(share: float) -> str:
    """Format a fraction as a percentage; 100 % and 0 % appear only for exactly all and none."""
    text = f"{share:.1%}"
    if text == "100.0%" and share < 1:
        return ">99.9%"
    return "<0.1%" if text == "0.0%" and share > 0 else text


def milliseconds(value: float | None) -> str:
    """Format a latency for people to read."""
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"


def markdown(report: "EvalReport") -> str:
    """Return the report as Markdown: the figures, the tags and the first failures."""
    low, high = report.pass_rate_interval
    lines = [
        f"# Evaluation {_md(report.run_id or '')}".rstrip(),
        "",
        "| figure | value |",
        "|---|---|",
        f"| pass rate | {percent(report.pass_rate)} |",
        f"| 95 % interval | {percent(low)} to {percent(high)} |",
        f"| passed | {report.passed_count} of {report.total_samples} |",
        f"| mean score | {report.mean_score:.3f} |",
        f"| errors | {report.error_count} |",
        f"| missing | {report.missing_count} |",
        f"| latency p50 / p95 / p99 | {' / '.join(_latencies(report))} |",
    ]
    if report.errors_by_type():
        lines += ["", "## Errors", "", "| type | count |", "|---|---|"]
        lines += [f"| {_md(kind)} | {count} |" for kind, count in report.errors_by_type().items()]
    tags = report.by_tag()
    if tags:
        lines += [
            "",
            "## Tags",
            "",
            "| tag | passed | pass rate | mean score |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {_md(one.tag)} | {one.passed} of {one.total} | {percent(one.pass_rate)} "
            f"| {one.mean_score:.3f} |"
            for one in tags.values()
        ]
    lines += _failures(report)
    if report.missing:
        shown = ", ".join(_md(id) for id in report.missing[:SHOWN])
        more = len(report.missing) - SHOWN
        lines += ["", "## Missing", "", shown + (f" and {more} more" if more > 0 else "")]
    return "\n".join(lines) + "\n"


def junit_xml(report: "EvalReport") -> str:
    """Return the report as a JUnit test suite; a missing sample counts as an error."""
    failed = report.failed_samples()
    errors = report.error_count
    suite = Xml.Element(
        "testsuite",
        name=_xml(report.run_id or "evaluation"),
        tests=str(report.total_samples + report.missing_count),
        failures=str(len(failed) - errors),
        errors=str(errors + report.missing_count),
        time=f"{sum(report.latencies) / 1000:.3f}",
    )
    for result in report.results:
        case = Xml.SubElement(
            suite,
            "testcase",
            classname=_xml("eval." + (result.tags[0] if result.tags else "untagged")),
            name=_xml(result.sample_id),
            time=f"{(result.latency_ms or 0) / 1000:.3f}",
        )
        if result.error is not None:
            kind = _xml(result.error_type or "error")
            Xml.SubElement(case, "error", type=kind, message=_xml(result.error))
        elif not result.passed:
            reason = result.score.reason or f"score {result.score.value:g}"
            failure = Xml.SubElement(case, "failure", message=_xml(reason))
            failure.text = _xml(result.output or "")
    # Of some missing samples only the number may be known.
    unknown = report.missing_count - len(report.missing)
    for id in (*report.missing, *(f"unknown {n}" for n in range(1, unknown + 1))):
        case = Xml.SubElement(suite, "testcase", classname="eval.missing", name=_xml(id))
        Xml.SubElement(case, "error", type="missing", message="no result arrived in time")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(suite, encoding="unicode")


def _latencies(report: "EvalReport") -> list[str]:
    return [milliseconds(report.latency_percentile(share)) for share in (0.5, 0.95, 0.99)]


def _failures(report: "EvalReport") -> list[str]:
    failed = report.failed_samples()
    if not failed:
        return []
    lines = ["", "## Failed", "", "| sample | score | why |", "|---|---|---|"]
    for result in failed[:SHOWN]:
        why = result.error or result.score.reason or ""
        lines.append(f"| {_md(result.sample_id)} | {result.score.value:.2f} | {_md(why)} |")
    if len(failed) > SHOWN:
        lines += ["", f"and {len(failed) - SHOWN} more"]
    return lines


def _md(text: str) -> str:
    """Escape text for a table cell, so that Markdown does not interpret it."""
    cut = text if len(text) <= SHOWN_TEXT else text[: SHOWN_TEXT - 1] + "…"
    return _MARKUP.sub(r"\\\1", " ".join(_xml(cut).split()))


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
