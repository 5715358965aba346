"""Commands that evaluate: run, submit, collect and compare."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import weakincentives
from weakincentives.cli import output
from weakincentives.cli.eval_pool import load_loop, pool_for
from weakincentives.cli.eval_progress import note, progress
from weakincentives.cli.queues import DEFAULT_URL, JsonOption, UrlOption
from weakincentives.errors import WinkError
from weakincentives.evals import (
    Comparison,
    Dataset,
    EvalLoop,
    EvalReport,
    collect_results,
    submit_dataset,
)
from weakincentives.evals import compare as compare_reports
from weakincentives.evals.dataset import write_whole
from weakincentives.evals.formats import milliseconds, percent
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InvalidParameterError,
    MailboxResolutionError,
)
from weakincentives.runtime.mailbox.limits import check_name

__all__ = ["BELOW", "INCOMPLETE", "register"]

BELOW = 3
INCOMPLETE = 4

EXIT_CODES = """

Exit codes: 0 fine; 1 something failed; 2 bad input, and nothing was run; 3 the pass rate is too
low, or the second run is worse; 4 results are missing; 130 or 143 stopped by Ctrl-C or SIGTERM.
"""

WRITERS: dict[str, Callable[[EvalReport], str]] = {
    ".html": EvalReport.to_html,
    ".json": EvalReport.to_json,
    ".md": EvalReport.to_markdown,
    ".xml": EvalReport.to_junit_xml,
}

Data = Annotated[Path, typer.Argument(help="The data set: one JSON object a line.")]
Reports = Annotated[
    list[Path] | None,
    typer.Option("--report", help="Write a report: .html, .json, .md or .xml (JUnit). May repeat."),
]
MinPassRate = Annotated[
    float | None, typer.Option(help="From 0 to 1: with less, the exit code is 3.")
]
Timeout = Annotated[float, typer.Option(help="Seconds until it ends with what is there.")]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="The run's id; that of one that was cut off resumes it.", metavar="ID"
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``wink``."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for command in (run, submit, collect, compare):
        group.command(help=(command.__doc__ or "") + EXIT_CODES)(command)
    app.add_typer(group, name="eval", help="Evaluate a loop on a data set.")


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="An EvalLoop, or a function that makes one from a backend.",
        ),
    ],
    data: Data,
    workers: Annotated[int, typer.Option(help="How many processes evaluate.")] = 1,
    report: Reports = None,
    min_pass_rate: MinPassRate = None,
    run_id: RunOption = None,
    timeout: Timeout = 3600,
    lease: Annotated[
        float, typer.Option(help="Seconds until the sample of a dead worker is free again.")
    ] = 30,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a data set with workers started for it, and report."""
    if not 1 <= workers <= 256:
        raise InvalidParameterError(f"--workers must be from 1 to 256, not {workers}")
    save = _reporter(report, min_pass_rate)
    with weakincentives.connect(url) as backend:
        loop = load_loop(target, backend)
        dataset: Dataset[Any, Any] = Dataset.load(data, *loop.sample_types)
        name = check_name(run_id or f"eval-{new_id()}", "--run")
        results = _results_of(loop, name)
        with progress(len(dataset)) as told:
            pool = pool_for(target, loop, url, workers, lease)

            def looked(done: int, expected: int) -> None:
                pool.check(done)
                told(done, expected)

            def save_whole(report: EvalReport) -> None:
                if report.complete:
                    save(report)

            collected = partial(collect_results, results, dataset=dataset, run_id=name)
            # What an earlier process brought is still there, if it was not reported.
            found = collected(timeout_seconds=0, save=save_whole, progress=_silent)
            if not found.complete:
                left = dataset.without(result.sample_id for result in found.results)
                note(f"run {name}: {len(left)} samples to go; resume it with --run {name}")
                submit_dataset(left, loop.requests, reply_to=results, run_id=name)
                with pool:
                    found = collected(timeout_seconds=timeout, save=save, progress=looked)
    _finish(found, report, min_pass_rate, as_json)


def submit(
    queue: Annotated[str, typer.Argument(help="The queue that the workers serve.")],
    data: Data,
    run_id: RunOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Send a data set to workers that run elsewhere; results go to a queue named as the run."""
    dataset: Dataset[Any, Any] = Dataset.load(data)
    name = check_name(run_id or f"eval-{new_id()}", "--run")
    with weakincentives.connect(url) as backend:
        submit_dataset(dataset, backend.mailbox(queue), reply_to=backend.mailbox(name), run_id=name)
    if as_json:
        output.print_json({"run_id": name, "samples": len(dataset)})
    else:
        output.console().print(f"sent {len(dataset)} samples to {queue} as run {name}")
        output.console().print(f"next: wink eval collect {name} {data}", markup=False)


def collect(
    run_id: Annotated[str, typer.Argument(help="The run's id, which is its results' queue too.")],
    data: Data,
    report: Reports = None,
    min_pass_rate: MinPassRate = None,
    timeout: Timeout = 3600,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Wait for the results of a run and report; cut off, it can be repeated."""
    save = _reporter(report, min_pass_rate)
    dataset: Dataset[Any, Any] = Dataset.load(data)
    with (
        weakincentives.connect(url) as backend,
        progress(len(dataset)) as told,
    ):
        found = collect_results(
            backend.mailbox(check_name(run_id, "run_id")),
            dataset=dataset,
            run_id=run_id,
            timeout_seconds=timeout,
            save=save,
            progress=told,
        )
    _finish(found, report, min_pass_rate, as_json)


def compare(
    before: Annotated[Path, typer.Argument(help="The JSON report of one run.")],
    after: Annotated[Path, typer.Argument(help="The JSON report of the other.")],
    fail_if_worse: Annotated[
        bool, typer.Option("--fail-if-worse", help="Exit code 3 if it is significantly worse.")
    ] = False,
    seed: Annotated[int, typer.Option(help="For the bootstrap intervals.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Say which samples changed between two runs, and whether the difference means anything."""
    found = compare_reports(EvalReport.load(before), EvalReport.load(after), seed=seed)
    if as_json:
        output.print_json({**_plain(found), "verdict": found.verdict})
    else:
        _show_comparison(found)
    if fail_if_worse and found.verdict == "worse":
        raise typer.Exit(BELOW)


def _results_of(loop: EvalLoop[Any, Any, Any], name: str) -> Any:
    """Return the mailbox that the workers will find under this name."""
    if isinstance(loop.requests, InMemoryMailbox):
        return InMemoryMailbox(name)
    resolve = getattr(loop.requests, "resolve", None)
    try:
        if resolve is not None:
            return resolve(name)
    except MailboxResolutionError as error:
        raise InvalidParameterError(
            f"the loop's requests find no mailbox for results: {error}"
        ) from error
    raise InvalidParameterError("the loop's requests cannot resolve a mailbox for results")


def _reporter(
    paths: list[Path] | None, min_pass_rate: float | None
) -> Callable[[EvalReport], None]:
    """Check what can be checked before anything runs, and return what writes the reports."""
    if min_pass_rate is not None and not 0 <= min_pass_rate <= 1:
        raise InvalidParameterError(f"--min-pass-rate must be from 0 to 1, not {min_pass_rate}")
    for path in paths or ():
        if path.suffix not in WRITERS:
            raise InvalidParameterError(f"--report {path}: the name must end in {_endings()}")
        if not path.parent.is_dir():
            raise InvalidParameterError(f"--report {path}: there is no directory {path.parent}")

    def save(report: EvalReport) -> None:
        for path in paths or ():
            try:
                write_whole(path, [WRITERS[path.suffix](report).encode("utf-8", "replace")])
            except OSError as error:
                # The results were not acknowledged: they are there for another try.
                raise WinkError(
                    f"{path} cannot be written: {error.strerror or error}; "
                    f"the results are kept, collect run {report.run_id} again"
                ) from error

    return save


def _endings() -> str:
    *others, last = WRITERS
    return f"{', '.join(others)} or {last}"


def _silent(done: int, expected: int) -> None:
    """Say nothing."""


def _finish(
    report: EvalReport, paths: list[Path] | None, min_pass_rate: float | None, as_json: bool
) -> None:
    if as_json:
        output.print_json(report.summary())
    else:
        _show(report, paths)
    if not report.complete:
        note(f"wink: {report.missing_count} of {report.expected_count} results are missing")
        raise typer.Exit(INCOMPLETE)
    if min_pass_rate is not None and report.pass_rate < min_pass_rate:
        note(f"wink: the pass rate {report.pass_rate:.4f} is below {min_pass_rate}")
        raise typer.Exit(BELOW)


def _show(report: EvalReport, paths: list[Path] | None) -> None:
    low, high = report.pass_rate_interval
    rows: list[tuple[str, object]] = [
        ("passed", f"{report.passed_count} of {report.total_samples}"),
        ("pass rate", f"{percent(report.pass_rate)} (95 %: {percent(low)} to {percent(high)})"),
        ("mean score", f"{report.mean_score:.3f}"),
        ("errors", report.error_count),
        ("missing", report.missing_count),
        ("latency p50", milliseconds(report.latency_percentile(0.5))),
        ("latency p95", milliseconds(report.latency_percentile(0.95))),
    ]
    rows += [(f"error {kind}", count) for kind, count in report.errors_by_type().items()]
    rows += [("report", path) for path in paths or ()]
    output.print_table(f"Run {report.run_id or ''}", ("figure", "value"), rows)


def _show_comparison(found: Comparison) -> None:
    rates, scores = found.pass_rate_interval, found.mean_score_interval
    rows: list[tuple[str, object]] = [
        ("samples in both", found.common),
        ("pass rate", f"{percent(found.pass_rate_a)} to {percent(found.pass_rate_b)}"),
        ("  difference", f"{found.pass_rate_difference:+.4f}"),
        ("  95 % interval", f"{rates.low:+.4f} to {rates.high:+.4f}"),
        ("mean score", f"{found.mean_score_a:.3f} to {found.mean_score_b:.3f}"),
        ("  95 % interval", f"{scores.low:+.4f} to {scores.high:+.4f}"),
        ("fixed", _some(found.fixed)),
        ("broken", _some(found.broken)),
        ("only in the first", len(found.only_in_a)),
        ("only in the second", len(found.only_in_b)),
        ("McNemar's p", f"{found.p_value:.4g}"),
        ("verdict", found.verdict),
    ]
    output.print_table("Comparison", ("figure", "value"), rows)


def _some(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - 20} more" if len(ids) > 20 else ""
    return f"{len(ids)}" + (f": {', '.join(ids[:20])}{more}" if ids else "")


def _plain(found: Comparison) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}
