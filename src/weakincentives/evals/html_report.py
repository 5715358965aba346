"""Formats a report as one HTML page without scripts, for phones and desktops, light and dark."""

from html import escape
from importlib import resources

from .formats import milliseconds, percent
from .messages import EvalResult
from .plots import latency_plot, score_plot, tag_plot
from .report import EvalReport

__all__ = ["page"]

SHOWN_FAILURES = 200
SHOWN_MISSING = 500

# With this policy a browser loads and runs nothing, whatever an output contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(report: EvalReport) -> str:
    """Return the report as an HTML page."""
    title = escape(f"Evaluation {report.run_id or ''}".rstrip())
    style = resources.files(__package__).joinpath("page.css").read_text("utf-8")
    body = "".join(
        (
            _head(report, title),
            _tiles(report),
            _plots(report),
            _failures(report),
            _missing(report),
        )
    )
    whole = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
    return whole.encode("utf-8", "replace").decode("utf-8")


def _head(report: EvalReport, title: str) -> str:
    times = [result.completed_at for result in report.results]
    when = f"{min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC" if times else ""
    warning = ""
    if not report.complete:
        warning = (
            f'<p class="warning">{report.missing_count:,} of {report.expected_count:,} samples '
            f"have no result; the figures below cover only those that have one.</p>\n"
        )
    return f'<header><h1>{title}</h1><p class="muted">{when}</p></header>\n{warning}'


def _tiles(report: EvalReport) -> str:
    low, high = report.pass_rate_interval
    p50, p95, p99 = (milliseconds(report.latency_percentile(at)) for at in (0.5, 0.95, 0.99))
    tiles = (
        (
            "pass rate",
            percent(report.pass_rate) if report.results else "-",
            f"95 % interval {percent(low)} to {percent(high)}",
        ),
        ("passed", f"{report.passed_count:,}", f"of {report.total_samples:,}"),
        ("mean score", f"{report.mean_score:.3f}", "errors count as 0"),
        ("errors", f"{report.error_count:,}", f"{report.missing_count:,} missing"),
        ("latency p50", p50, f"p95 {p95}, p99 {p99}"),
    )
    drawn = "".join(
        f'<div class="tile"><span class="muted">{name}</span><strong>{value}</strong>'
        f'<span class="muted">{below}</span></div>'
        for name, value, below in tiles
    )
    return f'<section class="tiles">{drawn}</section>\n'


def _plots(report: EvalReport) -> str:
    if not report.results:
        return ""
    plots = [("Scores", score_plot([result.score.value for result in report.results]))]
    if report.latencies:
        plots.append(("Latency", latency_plot(report.latencies)))
    plots.append(("Pass rate by tag", tag_plot(list(report.by_tag().values()))))
    if report.error_count:
        plots.append(("Errors by type", _errors(report)))
    drawn = "".join(f"<figure><h2>{name}</h2>{plot}</figure>\n" for name, plot in plots)
    return f'<section class="plots">\n{drawn}</section>\n'


def _errors(report: EvalReport) -> str:
    rows = "".join(
        f'<tr><td>{escape(kind)}</td><td class="number">{count:,}</td></tr>'
        for kind, count in report.errors_by_type().items()
    )
    head = '<tr><th>type</th><th class="number">count</th></tr>'
    return f"<table>{head}{rows}</table>"


def _failures(report: EvalReport) -> str:
    failed = report.failed_samples()
    if not failed:
        return ""
    drawn = "\n".join(_failure(result) for result in failed[:SHOWN_FAILURES])
    return (
        f"<section><h2>Failed samples ({len(failed):,})</h2>\n{drawn}"
        f"{_more(len(failed) - SHOWN_FAILURES)}</section>\n"
    )


def _failure(result: EvalResult) -> str:
    why = result.error or result.score.reason or ""
    facts = [("why", why), ("output", result.output or "")]
    if result.tags:
        facts.append(("tags", ", ".join(result.tags)))
    if result.latency_ms is not None:
        facts.append(("latency", milliseconds(result.latency_ms)))
    shown = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    mark = "error" if result.error is not None else f"{result.score.value:.2f}"
    kind = "badge error" if result.error is not None else "badge"
    return (
        f'<details><summary><span class="{kind}">{mark}</span>'
        f'<span class="id">{escape(result.sample_id)}</span>'
        f'<span class="muted why">{escape(why[:120])}</span></summary><dl>{shown}</dl></details>'
    )


def _missing(report: EvalReport) -> str:
    if not report.missing:
        return ""
    ids = "".join(f"<li>{escape(id)}</li>" for id in report.missing[:SHOWN_MISSING])
    return (
        f"<section><h2>Missing samples ({len(report.missing):,})</h2>"
        f'<ul class="ids">{ids}</ul>{_more(len(report.missing) - SHOWN_MISSING)}</section>\n'
    )


def _more(count: int) -> str:
    if count <= 0:
        return ""
    return f'<p class="muted">and {count:,} more; the JSON report has all of them</p>'
