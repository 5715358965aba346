"""Gathering the results of a run.

Results stay in their mailbox, leased and not acknowledged, until the report of the whole run is
saved. Whatever ends a collection before that (a timeout, an error, Ctrl-C) gives them back, and
after kill -9 their leases run out: either way another process collects all of them again. The
mailbox itself is thus the only state, and it is where every process of the run can reach it.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from weakincentives.runtime import (
    InvalidParameterError,
    Lease,
    LeaseExtender,
    LeaseExtenderConfig,
    Mailbox,
    MailboxConnectionError,
    MailboxError,
    Message,
    SerializationError,
)
from weakincentives.runtime.backoff import transport_pause
from weakincentives.runtime.mailbox.limits import is_number
from weakincentives.runtime.type_arguments import bind

from .dataset import Dataset
from .messages import EvalResult, request_id_for
from .progress import shown_progress
from .report import EvalReport

__all__ = ["collect_results"]

logger = logging.getLogger(__name__)

LOOK = 1.0
BATCH = 100
# How long a collector that was killed keeps the results from the next one.
LEASE = 20.0
# Where few leases fit into one call, extending thousands of them takes its time.
LONG_LEASE = 600.0
# Results of other runs are for somebody else, who must find them.
NOT_OURS = 5.0

Progress = Callable[[int, int], object]


def collect_results(
    results: Mailbox[EvalResult, None],
    *,
    expected_count: int | None = None,
    timeout_seconds: float = 300,
    run_id: str | None = None,
    dataset: Dataset[Any, Any] | None = None,
    save: Callable[[EvalReport], object] | None = None,
    progress: Progress | None = None,
) -> EvalReport:
    """Wait for the results of a run and return its report; each sample counts once.

    It ends when there are ``expected_count`` results, or one for each sample of ``dataset``, or
    after ``timeout_seconds`` with what is there; with a ``dataset`` the report names the missing
    samples. Told a ``run_id``, it leaves the results of other runs alone.

    ``save`` is called with the report, and only when it has returned are the results of a
    complete run acknowledged. Those of an incomplete one stay: calling this again, here or in
    another process, counts them again. One collector at a time sees all results of a run.

    ``progress`` is called with the number of results so far and the number expected after each
    look, at least once a second; by default a terminal shows a bar, if Rich is installed.
    """
    if dataset is not None:
        expected_count = len(dataset)
    if type(expected_count) is not int or expected_count < 0:
        raise InvalidParameterError(
            f"pass expected_count, a whole number, or dataset: how many results are there to be? "
            f"(expected_count is {expected_count!r})"
        )
    if not is_number(timeout_seconds) or timeout_seconds < 0:
        raise InvalidParameterError(f"timeout_seconds must be 0 or more, not {timeout_seconds!r}")
    bind(results, EvalResult, None)
    collection = Collection(results, run_id, dataset)
    try:
        with shown_progress(progress, expected_count) as told:
            collection.gather(expected_count, time.monotonic() + timeout_seconds, told)
        report = collection.report(expected_count)
        if save is not None:
            save(report)
    except BaseException:
        collection.give_back()
        raise
    if report.complete:
        collection.acknowledge()
    else:
        collection.give_back()
    return report


class Collection:
    """The results of one run, held until they are reported."""

    def __init__(self, mailbox: Any, run_id: str | None, dataset: Dataset[Any, Any] | None) -> None:
        self._mailbox = mailbox
        self._run_id = run_id
        self._order = None if dataset is None else {s.id: n for n, s in enumerate(dataset)}
        self._tags = {} if dataset is None else {s.id: s.tags for s in dataset}
        self._by_request: dict[UUID, str] = {}
        limits = mailbox.limits
        self._size = min(BATCH, limits.max_batch)
        self._lease = limits.rounded(LEASE if limits.max_batch >= BATCH else LONG_LEASE)
        self._extender = LeaseExtender(
            LeaseExtenderConfig(interval=self._lease, extension=self._lease, max_lease_seconds=None)
        )
        self._held: dict[str, Lease] = {}
        self._results: dict[tuple[str, str], EvalResult] = {}

    def gather(self, expected: int, deadline: float, told: Progress) -> None:
        """Receive until the run is complete or the time is over."""
        failures = 0
        told(0, expected)
        while len(self._results) < expected:
            left = deadline - time.monotonic()
            try:
                news = self._look(min(max(left, 0.0), LOOK))
            except MailboxConnectionError as error:
                if left <= 0 and not self._held:
                    raise  # nothing was ever heard: an empty report would be a lie
                failures += 1
                logger.warning("%s: receiving results failed: %s", self._mailbox.name, error)
                news = False
                time.sleep(max(min(transport_pause(failures), left), 0.0))
            told(len(self._results), expected)
            if left <= 0 and not news:
                return

    def report(self, expected: int) -> EvalReport:
        """Put together the report of what is there."""
        found = list(self._results.values())
        if self._order is None:
            found.sort(key=lambda result: (result.sample_id, result.run_id))
            missing: Iterable[str] = ()
        else:
            order = self._order
            found.sort(key=lambda result: order[result.sample_id])
            there = {result.sample_id for result in found}
            missing = (id for id in order if id not in there)
        runs = {result.run_id for result in found}
        run_id = self._run_id or (runs.pop() if len(runs) == 1 else None)
        return EvalReport(tuple(found), run_id, expected, tuple(missing))

    def acknowledge(self) -> None:
        """Remove what was reported; what cannot be removed now is the same result once more."""
        for leases in self._batches():
            try:
                self._mailbox.acknowledge_batch([lease.message for lease in leases])
            except MailboxError as error:
                logger.warning("%s: results stay behind: %s", self._mailbox.name, error)
            self._let_go(leases)

    def give_back(self) -> None:
        """Let others receive the results again, at once."""
        for leases in self._batches():
            self._let_go(leases)
            messages = [lease.message for lease in leases]
            extend = getattr(self._mailbox, "extend_batch", None)
            try:
                if extend is not None:
                    extend(messages, 0)
                else:
                    for message in messages:
                        message.nack()
            except MailboxError as error:
                logger.debug("%s: leases are left to run out: %s", self._mailbox.name, error)

    def _look(self, wait: float) -> bool:
        """Receive once; True if there were new results."""
        limits = self._mailbox.limits
        before = len(self._results)
        for message in self._mailbox.receive(
            max_messages=self._size,
            visibility_timeout=self._lease,
            wait_time_seconds=wait if limits.fractions else math.ceil(wait),
        ):
            result = self._read(message)
            if result is None:
                self._leave(message)
                continue
            again = self._held.pop(message.id, None)
            if again is not None:
                again.release()
            self._held[message.id] = self._extender.hold(message)
            key = (result.run_id if self._order is None else "", result.sample_id)
            known = self._results.get(key)
            # A dead letter that was replayed may turn an error into a result.
            if known is None or (known.error is not None and result.error is None):
                self._results[key] = result
        return len(self._results) > before

    def _read(self, message: Message[Any, Any]) -> EvalResult | None:
        """Return the result in a message; None if it is none of this run."""
        try:
            body = message.body
            if not isinstance(body, EvalResult):
                body = msgspec.convert(body, EvalResult, strict=False)
        except (SerializationError, msgspec.ValidationError) as error:
            logger.warning("%s is no result, it stays where it is: %s", message.id, error)
            return None
        return self._of_this_run(body)

    def _of_this_run(self, result: EvalResult) -> EvalResult | None:
        if not result.sample_id and result.request_id is not None:
            # Of a request that was given up unread: its id is all that is known.
            sample = self._sample_of(result.request_id) or f"request {result.request_id}"
            result = replace(
                result,
                sample_id=sample,
                run_id=self._run_id or "",
                tags=self._tags.get(sample, ()),
            )
        if self._run_id is not None and result.run_id != self._run_id:
            return None
        if self._order is not None and result.sample_id not in self._order:
            return None
        return result

    def _sample_of(self, request: UUID) -> str | None:
        if self._order is None or self._run_id is None:
            return None
        if not self._by_request:
            run = self._run_id
            self._by_request = {request_id_for(run, id): id for id in self._order}
        return self._by_request.get(request)

    def _leave(self, message: Message[Any, Any]) -> None:
        try:
            message.nack(visibility_timeout=self._mailbox.limits.rounded(NOT_OURS))
        except MailboxError as error:
            logger.debug("%s: a lease is left to run out: %s", self._mailbox.name, error)

    def _batches(self) -> Iterable[list[Lease]]:
        held = list(self._held.values())
        size = self._mailbox.limits.max_batch
        for start in range(0, len(held), size):
            yield held[start : start + size]

    def _let_go(self, leases: list[Lease]) -> None:
        for lease in leases:
            lease.release()
            self._held.pop(lease.message.id, None)
