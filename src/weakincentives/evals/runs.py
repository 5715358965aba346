"""A run that can be resumed after its processes were killed, evaluating no sample twice.

Before the first sample is sent, a note in the run's record mailbox says that sending has begun.
From then on a sample is sent again only if it certainly has neither a request nor a result: the
mailbox of requests was empty (a worker sends the result before it acknowledges the request), and
after that this process held every result that is in the mailbox. This works even hours later,
when the mailbox no longer remembers the message ids.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from weakincentives.errors import WinkError
from weakincentives.ids import derived_id
from weakincentives.logs import get_logger
from weakincentives.runtime import MailboxConnectionError, MailboxError, SerializationError
from weakincentives.runtime.mailbox.queue_names import NAME

from .collection import collect_results, peek_results
from .dataset import Dataset
from .report import EvalReport
from .submission import (
    RunIsOverError,
    has_exact_counts,
    refuse_if_over,
    send_samples,
    without_results,
)

__all__ = ["Run", "Submitted", "record_name"]

logger = get_logger(__name__)

BEGUN, REPORTED = "begun", "reported"
# Attributes of the first note: how many samples the run was begun with, and which.
SIZE, SAMPLES = "size", "samples"
PAUSE = 0.1
# A count that is not exact may be a minute late, so there a mailbox must stay empty for this long.
INEXACT_DELAY = 120.0
# How many of the requests are looked at for samples of other runs.
LOOKED_AT = 1000

Progress = Callable[[int, int], object]
Save = Callable[[EvalReport], object]


class Submitted(NamedTuple):
    """What became of the samples of a data set when it was submitted."""

    sent: int
    have_results: int
    sent_before: int
    """These are still queued, or were evaluated within the last five minutes."""


class _AllAnswered(Exception):
    """Every request was answered, but results are missing."""


def record_name(run_id: str) -> str:
    """Return the name of the mailbox that holds the notes of a run."""
    name = f"{run_id}.run"
    return name if NAME.fullmatch(name) else f"{derived_id('run', run_id)}.run"


class Run:
    """One evaluation run: sends its samples once and collects their results."""

    def __init__(
        self, run_id: str, dataset: Dataset[Any, Any], requests: Any, results: Any, record: Any
    ) -> None:
        self.id = run_id
        self._dataset = dataset
        self._requests = requests
        self._results = results
        self._record = record
        self._empty_since: float | None = None
        self._shown = 0
        """The largest number of results that was shown."""

    def begin(self) -> Submitted | None:
        """Send the samples and return what was sent; return None if the run was begun before."""
        notes = self._record.approximate_count()
        if notes > 1:
            raise WinkError(
                f"run {self.id} is complete and was reported: use another id, or purge "
                f"{self._record.name} to evaluate everything again under this id"
            )
        if notes:
            return None
        # Results without a note belong to a run that was submitted in another way.
        is_new = not self._results.approximate_count()
        about = {SIZE: str(len(self._dataset)), SAMPLES: _fingerprint(self._dataset)}
        self._record.send(BEGUN, message_id=BEGUN, attributes=about)
        if not is_new:
            return None
        try:
            return self._submit_all(self._dataset)
        except RunIsOverError:
            self._forget()  # nothing was begun
            raise

    def look(self) -> EvalReport:
        """Return a report of the results so far, without removing them."""
        found = self._peek()[0]
        self._shown = max(self._shown, found.total_samples)
        return found

    def is_known(self) -> bool:
        """Return whether there is a note or a result of this run."""
        return bool(self._record.approximate_count() or self._results.approximate_count())

    def size_of_other_dataset(self) -> int | None:
        """Return how many samples the run was begun with, if they are not those of the data set."""
        for found in self._record.peek(1):
            begun_with = found.attributes.get(SAMPLES)
            if begun_with not in (None, _fingerprint(self._dataset)):
                return int(found.attributes[SIZE])
        return None

    def waiting_of_other_runs(self) -> dict[str, int]:
        """Return how many samples of which other runs are among the first thousand requests."""
        limit = min(LOOKED_AT, self._requests.limits.max_batch)
        waiting = Counter(_run_of(found) for found in self._requests.peek(limit))
        return {run: count for run, count in waiting.items() if run not in ("", self.id)}

    def submit_rest(self) -> Submitted:
        """Send the samples that have no result; return what was sent."""
        return self._submit_all(without_results(self._dataset, self._results, self.id))

    def collect(self, *, timeout: float, save: Save, progress: Progress) -> EvalReport:
        """Wait for the results and save the report; remove the results of a complete run."""
        return self._collect(timeout, save, self._forward_only(progress))

    def _collect(self, timeout: float, save: Save, progress: Progress) -> EvalReport:
        def save_and_note(report: EvalReport) -> None:
            save(report)
            if report.complete and self._record.approximate_count():
                # Otherwise the samples would look lost once their results are removed.
                self._record.send(REPORTED, message_id=REPORTED)

        report = collect_results(
            self._results,
            dataset=self._dataset,
            run_id=self.id,
            timeout_seconds=timeout,
            save=save_and_note,
            progress=progress,
        )
        if report.complete:
            self._forget()
        return report

    def resume(self, *, timeout: float, save: Save, progress: Progress) -> EvalReport:
        """Wait for the results of a run that was begun; send lost samples again, once."""
        deadline = time.monotonic() + timeout
        forward, sent_again = self._forward_only(progress), False

        def until_answered(done: int, expected: int) -> None:
            forward(done, expected)
            if done < expected and self._is_answered():
                raise _AllAnswered

        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                return self._collect(left, save, until_answered)
            except _AllAnswered:
                pass
            found = self._wait_for_all_results(deadline, lambda: forward(0, len(self._dataset)))
            if found is None:
                logger.warning("run %s: another process is collecting its results", self.id)
                return self._collect(0, save, forward)
            if found.complete:
                left = max(deadline - time.monotonic(), 0.0)
                return self._collect(left, save, forward)
            sent = 0 if sent_again else self._submit_missing(found)
            if not sent:
                logger.warning(
                    "run %s: %d samples have neither a request nor a result, and are not sent "
                    "again: if a run with this id ended a few minutes ago, use another id",
                    self.id,
                    found.missing_count,
                )
                return self._collect(0, save, forward)
            sent_again = True
            logger.warning("run %s: sent %d samples that were lost or never sent", self.id, sent)

    def _wait_for_all_results(
        self, deadline: float, meanwhile: Callable[[], object]
    ) -> EvalReport | None:
        """Return all results; None if another process held some of them until the deadline."""
        while True:
            try:
                if not self._results.stats().in_flight:
                    found, all_seen = self._peek()
                    if all_seen:
                        return found
            except MailboxConnectionError as error:
                logger.warning("run %s: reading its results failed: %s", self.id, error)
            if time.monotonic() >= deadline:
                return None
            time.sleep(PAUSE)
            meanwhile()

    def _forward_only(self, progress: Progress) -> Progress:
        """Return a function that shows progress and never a smaller number than before."""

        def show(done: int, expected: int) -> None:
            self._shown = max(self._shown, done)
            progress(self._shown, expected)

        return show

    def _peek(self) -> tuple[EvalReport, bool]:
        return peek_results(self._results, dataset=self._dataset, run_id=self.id)

    def _is_answered(self) -> bool:
        """Return whether every request that was sent has been answered."""
        try:
            count = self._requests.approximate_count()
        except MailboxConnectionError as error:
            logger.warning("run %s: counting its requests failed: %s", self.id, error)
            count = 1
        if count:
            self._empty_since = None
            return False
        if has_exact_counts(self._requests):
            return True
        now = time.monotonic()
        self._empty_since = now if self._empty_since is None else self._empty_since
        return now >= self._empty_since + INEXACT_DELAY

    def _submit_missing(self, found: EvalReport) -> int:
        return self._submit(self._dataset.without(result.sample_id for result in found.results))

    def _submit_all(self, rest: Dataset[Any, Any]) -> Submitted:
        """Send samples; raise if some are repeats of a run that is over."""
        sent = self._submit(rest)
        if sent < len(rest):
            refuse_if_over(self._dataset, self._requests, self._results, self.id)
        return Submitted(sent, len(self._dataset) - len(rest), len(rest) - sent)

    def _submit(self, samples: Dataset[Any, Any]) -> int:
        return send_samples(samples, self._requests, self._results, self.id)

    def _forget(self) -> None:
        """Purge the record mailbox of a finished run."""
        try:
            if self._record.approximate_count():
                self._record.purge()
        except MailboxError as error:
            logger.warning("run %s: its notes stay in %s: %s", self.id, self._record.name, error)


def _fingerprint(dataset: Dataset[Any, Any]) -> str:
    """Return a text that only data sets with the same sample ids have in common."""
    return derived_id("samples", *sorted(sample.id for sample in dataset))


def _run_of(request: Any) -> str:
    """Return the run to which a request belongs; an empty text if that cannot be read."""
    try:
        body = request.body
    except SerializationError:
        return ""
    run = body.get("run_id") if isinstance(body, dict) else getattr(body, "run_id", None)
    return run if isinstance(run, str) else ""
