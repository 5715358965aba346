"""Commands that evaluate: run, submit, collect and compare."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import weakincentives
from weakincentives.errors import WinkError
from weakincentives.evals import Comparison, Dataset, EvalLoop, EvalReport
from weakincentives.evals import compare as compare_reports
from weakincentives.evals.dataset import write_whole
from weakincentives.evals.formats import milliseconds, percent
from weakincentives.evals.runs import Run, Submitted, record_name
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InvalidParameterError,
    MailboxError,
    MailboxResolutionError,
)
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import output, tables
from .backends import connect_existing
from .eval_pool import URL_VARIABLE, eval_loop_from, pool_for
from .log_output import LogLevel, configure_logging, log_environment
from .output import note
from .progress import progress
from .queues import DEFAULT_URL, JsonOption, UrlOption
from .targets import find
from .worker import LogJsonOption, LogLevelOption

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

Data = Annotated[Path, typer.Argument(help="The data set: a file with one JSON object per line.")]
Reports = Annotated[
    list[Path] | None,
    typer.Option("--report", help="Write a report: .html, .json, .md or .xml (JUnit). May repeat."),
]
MinPassRate = Annotated[
    float | None, typer.Option(help="From 0 to 1; below this pass rate, the exit code is 3.")
]
Timeout = Annotated[
    float, typer.Option(help="Seconds to wait for results; then report what has arrived.")
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="The id of the run; an existing id resumes that run.", metavar="ID"),
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
    workers: Annotated[int, typer.Option(help="The number of worker processes.")] = 1,
    report: Reports = None,
    min_pass_rate: MinPassRate = None,
    run_id: RunOption = None,
    timeout: Timeout = 3600,
    lease: Annotated[
        float, typer.Option(help="Seconds until another worker gets the sample of a dead one.")
    ] = 30,
    url: UrlOption = DEFAULT_URL,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_json: LogJsonOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start workers, evaluate a data set with them, and report."""
    configure_logging(log_level, log_json)
    if not 1 <= workers <= 256:
        raise InvalidParameterError(f"--workers must be from 1 to 256, not {workers}")
    save = _reporter(report, min_pass_rate, timeout)
    name = check_name(run_id or f"eval-{new_id()}", "--run")
    found = find(target)  # before connecting, which may create a file
    with weakincentives.connect(url) as backend:
        loop = eval_loop_from(found, target, backend)
        dataset: Dataset[Any, Any] = Dataset.load(data, *loop.sample_types)
        results, record = (_mailbox_of(loop, one) for one in (name, record_name(name)))
        run = Run(name, dataset, loop.requests, results, record)
        with progress(len(dataset)) as show:
            environment = {URL_VARIABLE: url, **log_environment(log_level, log_json)}
            pool = pool_for(target, loop, workers, lease, environment)

            def looked(done: int, expected: int) -> None:
                pool.check(done, expected)
                show(done, expected)

            _say_what_else_is_evaluated(run, loop.requests.name)
            is_new = run.begin()
            # Results that an earlier process collected, but did not report, are still in the queue.
            there = 0 if is_new else run.look().total_samples
            left = output.counted(len(dataset) - there, "sample")
            note(f"run {name}: {left} to go; to resume it, pass --run {name}")
            if there == len(dataset):
                result = run.collect(timeout=timeout, save=save, progress=show)
            else:
                with pool:
                    result = run.resume(timeout=timeout, save=save, progress=looked)
    _finish(result, report, min_pass_rate, as_json)


def submit(
    queue: Annotated[str, typer.Argument(help="The queue that the workers serve.")],
    data: Data,
    run_id: RunOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Send a data set to workers that run elsewhere; results go to the queue named like the run."""
    dataset: Dataset[Any, Any] = Dataset.load(data)
    name = check_name(run_id or f"eval-{new_id()}", "--run")
    check_name(queue, "queue")
    with weakincentives.connect(url) as backend:
        results, record = backend.mailbox(name), backend.mailbox(record_name(name))
        run = Run(name, dataset, backend.mailbox(queue), results, record)
        submitted = run.begin() or run.submit_rest()
    if as_json:
        output.print_json({"run_id": name, "samples": len(dataset), **submitted._asdict()})
    else:
        _show_submitted(submitted, len(dataset), queue, name)
        output.print_line(f"next: wink eval collect {name} {data}")


def _show_submitted(submitted: Submitted, total: int, queue: str, run: str) -> None:
    samples = output.counted(total, "sample")
    of_all = samples if submitted.sent == total else f"{submitted.sent} of {samples}"
    output.print_line(f"sent {of_all} to {queue} as run {run}")
    for left_out, why in (
        (submitted.have_results, "have a result"),
        (
            submitted.sent_before,
            "were sent before: they are queued, or were evaluated within the last five minutes",
        ),
    ):
        if left_out:
            output.print_line(f"left out {output.counted(left_out, 'sample')} that {why}")


def collect(
    run_id: Annotated[
        str, typer.Argument(help="The id of the run; its results are in the queue of that name.")
    ],
    data: Data,
    report: Reports = None,
    min_pass_rate: MinPassRate = None,
    timeout: Timeout = 3600,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Wait for the results of a run and report; it can be repeated if it was interrupted."""
    save = _reporter(report, min_pass_rate, timeout)
    name = check_name(run_id, "run_id")
    dataset: Dataset[Any, Any] = Dataset.load(data)
    with (
        connect_existing(url) as backend,
        progress(len(dataset)) as show,
    ):
        results, record = backend.mailbox(name), backend.mailbox(record_name(name))
        run = Run(name, dataset, None, results, record)
        _say_what_is_strange(run, len(dataset), backend)
        found = run.collect(timeout=timeout, save=save, progress=show)
    _finish(found, report, min_pass_rate, as_json)


def compare(
    before: Annotated[Path, typer.Argument(help="The JSON report of one run.")],
    after: Annotated[Path, typer.Argument(help="The JSON report of the run to compare with it.")],
    fail_if_worse: Annotated[
        bool, typer.Option("--fail-if-worse", help="Exit code 3 if anything is worse.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of the permutation test.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show which samples changed between two runs, and whether the difference is significant."""
    found = compare_reports(EvalReport.load(before), EvalReport.load(after), seed=seed)
    if as_json:
        output.print_json({**_plain(found), "verdict": found.verdict})
    else:
        _show_comparison(found)
    if fail_if_worse and found.verdict in ("worse", "mixed"):
        raise typer.Exit(BELOW)


def _say_what_else_is_evaluated(run: Run, queue: str) -> None:
    """Say how many samples of other runs the workers will evaluate too."""
    with suppress(MailboxError):  # not every backend can look into a queue
        for other, count in run.waiting_of_other_runs().items():
            samples = output.counted(count, "sample")
            waits, is_ = ("waits", "is") if count == 1 else ("wait", "are")
            note(
                f"{samples} of run {other} {waits} in {queue}, and {is_} evaluated too; "
                f"to remove everything there: wink purge {queue}"
            )


def _say_what_is_strange(run: Run, size: int, backend: Backend) -> None:
    """Say at once if the results that a collector waits for will hardly come."""
    with suppress(MailboxError):  # not every backend can look into a queue
        if not run.is_known():
            known = ", ".join(_known_runs(backend)) or "none"
            note(
                f"wink: no run {run.id} is known here; known: {known}. "
                f"Waiting, in case it was submitted in another way"
            )
        elif (other := run.size_of_other_dataset()) is not None:
            note(
                f"wink: run {run.id} was begun with another data set: "
                f"{output.counted(other, 'sample')}, not these {size}"
            )


def _known_runs(backend: Backend) -> list[str]:
    """Return the ids of the runs that have notes."""
    ids = (name.removesuffix(".run") for name in backend.queues() if name.endswith(".run"))
    return [id for id in ids if backend.mailbox(record_name(id)).approximate_count()]


def _mailbox_of(loop: EvalLoop[Any, Any, Any], name: str) -> Any:
    """Return the mailbox that the workers find under this name."""
    if isinstance(loop.requests, InMemoryMailbox):
        return InMemoryMailbox(name)
    resolve = getattr(loop.requests, "_resolve", None)
    try:
        if resolve is not None:
            return resolve(name)
    except MailboxResolutionError as error:
        raise InvalidParameterError(
            f"the loop's requests cannot find a mailbox for the results: {error}"
        ) from error
    raise InvalidParameterError("the loop's requests cannot find a mailbox for the results")


def _reporter(
    paths: list[Path] | None, min_pass_rate: float | None, timeout: float
) -> Callable[[EvalReport], None]:
    """Check the options before anything runs, and return a function that writes the reports."""
    if min_pass_rate is not None and not 0 <= min_pass_rate <= 1:
        raise InvalidParameterError(f"--min-pass-rate must be from 0 to 1, not {min_pass_rate}")
    if not timeout >= 0:
        raise InvalidParameterError(f"--timeout must be 0 or more, not {timeout}")
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
                # The results are not acknowledged yet, so they can be collected again.
                raise WinkError(
                    f"{path} cannot be written: {error.strerror or error}; "
                    f"the results are kept, collect run {report.run_id} again"
                ) from error

    return save


def _endings() -> str:
    *others, last = WRITERS
    return f"{', '.join(others)} or {last}"


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
    tables.print_table(f"Run {report.run_id or ''}", ("figure", "value"), rows)


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
        ("p of the scores", f"{found.score_p_value:.4g}"),
        ("verdict", found.verdict),
    ]
    tables.print_table("Comparison", ("figure", "value"), rows)


def _some(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - 20} more" if len(ids) > 20 else ""
    return f"{len(ids)}" + (f": {', '.join(ids[:20])}{more}" if ids else "")


def _plain(found: Comparison) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}
