"""Collects the results of a run.

Results stay in their mailbox, leased and not acknowledged, until the report of the whole run is
saved. If the collection ends before that (by a timeout, an error or Ctrl-C), it makes them visible
again; after kill -9, their leases run out. Either way another process can collect all of them
again. So the mailbox is the only state, and every process of the run can reach it.

Every lease has to be extended, so there must not be too many of them: from a thousand results on,
they are combined into packs. A pack is sent to the same mailbox before the results in it are
acknowledged, so each result is in the mailbox at least once at any time.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from weakincentives.logs import get_logger
from weakincentives.runtime import (
    InvalidParameterError,
    Lease,
    LeaseExtender,
    LeaseExtenderConfig,
    Mailbox,
    MailboxConnectionError,
    MailboxError,
    Message,
    PayloadTooLargeError,
    SerializationError,
)
from weakincentives.runtime.mailbox.limits import is_number
from weakincentives.runtime.worker.backoff import transport_pause
from weakincentives.runtime.worker.type_arguments import bind

from .dataset import Dataset
from .messages import EvalResult, request_id_for
from .progress import shown_progress
from .report import EvalReport
from .result_codec import pack, read_results

__all__ = ["collect_results", "peek_results"]

logger = get_logger(__name__)

# The longest wait of one receive, so that progress is shown once a second.
MAX_WAIT = 1.0
# If the first result takes longer than this, the log says so.
SILENCE = 30.0
BATCH = 100
# After a collector is killed, the next one has to wait this long for its results.
LEASE = 20.0
# For backends with small batches, where extending a thousand leases takes a while.
LONG_LEASE = 120.0
# Results of other runs become visible again after this time, for their own collectors.
OTHER_RUN_DELAY = 5.0
# When this many results have a message of their own, they are combined into packs of this size.
PACK_AT = 1000
PACK_SIZE = 500
# After its timeout a collector still receives what is queued, but not for longer than this.
GRACE_SECONDS = 20.0

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
    after ``timeout_seconds`` with the results so far. With ``dataset``, the report names the
    missing samples. With ``run_id``, results of other runs are left alone.

    ``save`` is called with the report; the results of a complete run are acknowledged only after
    it has returned. The results of an incomplete run stay in the mailbox: calling this again, here
    or in another process, counts them again. Run one collector at a time: two would each see only
    some of the results.

    ``progress`` is called with the number of results so far and the number expected, at least
    once a second. By default a terminal shows a progress bar, if Rich is installed.
    """
    if dataset is not None:
        expected_count = len(dataset)
    if type(expected_count) is not int or expected_count < 0:
        raise InvalidParameterError(
            f"pass dataset, or expected_count as a whole number of results, not {expected_count!r}"
        )
    if not is_number(timeout_seconds) or timeout_seconds < 0:
        raise InvalidParameterError(f"timeout_seconds must be 0 or more, not {timeout_seconds!r}")
    bind(results, EvalResult, None)
    collection = Collection(results, run_id, dataset)
    try:
        with shown_progress(progress, expected_count) as show_progress:
            collection.gather(expected_count, time.monotonic() + timeout_seconds, show_progress)
        report = collection.report(expected_count)
        if save is not None:
            save(report)
    except BaseException:
        collection.release()
        raise
    if report.complete:
        collection.acknowledge()
    else:
        collection.release()
    return report


def peek_results(
    results: Mailbox[EvalResult, None], *, dataset: Dataset[Any, Any], run_id: str
) -> tuple[EvalReport, bool]:
    """Return a report of the results so far without removing them, and whether it has them all."""
    bind(results, EvalResult, None)
    collection = Collection(results, run_id, dataset)
    try:
        collection.gather(len(dataset), time.monotonic(), lambda done, expected: None)
        report = collection.report(len(dataset))
        return report, report.complete or collection.has_all()
    finally:
        collection.release()


class HeldMessage(NamedTuple):
    """A leased message that is held until the run is reported, and the results in it."""

    lease: Lease
    results: tuple[EvalResult, ...]
    others: tuple[EvalResult, ...]
    """Results in the same pack that belong to other runs."""


class Collection:
    """The results of one run, leased until they are reported."""

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
        self._held: dict[str, HeldMessage] = {}
        self._singles: dict[str, EvalResult] = {}
        """The held results that are not in a pack, by message id."""
        self._pack_at = PACK_AT
        self._packs: set[str] = set()
        """The ids of packs that were sent and have not been received yet."""
        self._left: set[str] = set()
        """The ids of messages that belong to other runs."""
        self._results: dict[tuple[str, str], EvalResult] = {}

    def gather(self, expected: int, deadline: float, show_progress: Progress) -> None:
        """Receive until the run is complete or the deadline has passed."""
        failures = 0
        silent_until: float | None = time.monotonic() + SILENCE
        show_progress(0, expected)
        while len(self._results) < expected:
            left = deadline - time.monotonic()
            try:
                found = self._receive(min(max(left, 0.0), MAX_WAIT))
                if len(self._singles) >= self._pack_at:
                    self._pack_singles()
            except MailboxConnectionError as error:
                if left <= 0 and not self._held:
                    raise  # the mailbox was never reached, so an empty report would be wrong
                failures += 1
                logger.warning("%s: receiving results failed: %s", self._mailbox.name, error)
                found = 0
                time.sleep(max(min(transport_pause(failures), left), 0.0))
            show_progress(len(self._results), expected)
            if silent_until is not None and (self._results or time.monotonic() >= silent_until):
                silent_until = None
                self._warn_if_silent(expected)
            if left <= 0 and (not found or left < -GRACE_SECONDS):
                return

    def _warn_if_silent(self, expected: int) -> None:
        if not self._results:
            logger.warning(
                "%s: 0 of %d results of run %s after %g seconds: does a worker serve the requests, "
                "and were the samples sent under this id?",
                self._mailbox.name,
                expected,
                self._run_id,
                SILENCE,
            )

    def has_all(self) -> bool:
        """Return whether this collection has read every message in the mailbox."""
        read = len(self._held) + len(self._packs) + len(self._left)
        total: int = self._mailbox.stats().total
        return total <= read

    def report(self, expected: int) -> EvalReport:
        """Return the report of the results so far."""
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
        """Acknowledge the reported results; one that cannot be removed would be counted once."""
        try:
            self._unpack()
        except MailboxError as error:
            logger.warning("%s: results stay behind: %s", self._mailbox.name, error)
        self._remove([held.lease for held in self._held.values()])

    def _unpack(self) -> None:
        """Receive this collection's own packs, and send what others need of all packs."""
        while self._packs and self._receive(0.0):
            pass
        for held in list(self._held.values()):
            if held.others:
                self._send(held.others)

    def release(self) -> None:
        """Make the results visible to other collectors again, at once."""
        for leases in self._batches([held.lease for held in self._held.values()]):
            self._drop(leases)
            messages = [lease.message for lease in leases]
            extend = getattr(self._mailbox, "extend_batch", None)
            try:
                if extend is not None:
                    extend(messages, 0)
                else:
                    for message in messages:
                        message.nack()
            except MailboxError as error:
                logger.debug("%s: leases will run out instead: %s", self._mailbox.name, error)

    def _receive(self, wait: float) -> int:
        """Receive once and hold the results; return how many messages were received."""
        limits = self._mailbox.limits
        messages = self._mailbox.receive(
            max_messages=self._size,
            visibility_timeout=self._lease,
            wait_time_seconds=wait if limits.fractions else math.ceil(wait),
        )
        for message in messages:
            results, others = self._read(message)
            if results:
                self._hold(message, results, others)
            else:
                self._leave(message)
        return len(messages)

    def _read(
        self, message: Message[Any, Any]
    ) -> tuple[tuple[EvalResult, ...], tuple[EvalResult, ...]]:
        """Return the results in a message that belong to this run, and the others."""
        try:
            found = [self._completed(result) for result in read_results(message)]
        except SerializationError as error:
            logger.warning("%s is not a result and stays in place: %s", message.id, error)
            return (), ()
        ours = tuple(result for result in found if self._is_ours(result))
        return ours, tuple(result for result in found if not self._is_ours(result))

    def _hold(
        self,
        message: Message[Any, Any],
        results: tuple[EvalResult, ...],
        others: tuple[EvalResult, ...],
    ) -> None:
        again = self._held.pop(message.id, None)
        if again is not None:
            again.lease.release()
        self._held[message.id] = HeldMessage(self._extender.hold(message), results, others)
        self._packs.discard(message.id)
        if len(results) == 1 and not others:
            self._singles[message.id] = results[0]
        for result in results:
            run = result.run_id if self._order is None else ""
            _count(self._results, (run, result.sample_id), result)

    def _pack_singles(self) -> None:
        """Replace messages of one result each by packs of many."""
        by_run: dict[str, list[str]] = {}
        for id, result in self._singles.items():
            by_run.setdefault(result.run_id, []).append(id)
        try:
            for ids in by_run.values():
                for start in range(0, len(ids), PACK_SIZE):
                    some = ids[start : start + PACK_SIZE]
                    once: dict[tuple[str, str], EvalResult] = {}
                    for result in map(self._singles.__getitem__, some):
                        _count(once, (result.run_id, result.sample_id), result)
                    self._send(list(once.values()))
                    self._remove([self._held[id].lease for id in some])
        except MailboxError as error:
            logger.warning("%s: results cannot be packed now: %s", self._mailbox.name, error)
        self._pack_at = len(self._singles) + PACK_AT

    def _send(self, results: Sequence[EvalResult]) -> None:
        """Send results as one pack, or as several if one would be too large."""
        try:
            self._packs.add(self._mailbox.send(pack(results, results[0].run_id)))
        except PayloadTooLargeError:
            if len(results) == 1:
                raise
            middle = len(results) // 2
            self._send(results[:middle])
            self._send(results[middle:])

    def _completed(self, result: EvalResult) -> EvalResult:
        """Return a result with its sample id and tags filled in from the data set."""
        if not result.sample_id and result.request_id is not None:
            # The request was given up without being read, so only its id is known.
            sample = self._sample_of(result.request_id) or f"request {result.request_id}"
            result = replace(result, sample_id=sample, run_id=self._run_id or "")
        if result.error is not None and not result.tags and result.sample_id in self._tags:
            result = replace(result, tags=self._tags[result.sample_id])
        return result

    def _is_ours(self, result: EvalResult) -> bool:
        of_this_run = self._run_id is None or result.run_id == self._run_id
        return of_this_run and (self._order is None or result.sample_id in self._order)

    def _sample_of(self, request: UUID) -> str | None:
        if self._order is None or self._run_id is None:
            return None
        if not self._by_request:
            run = self._run_id
            self._by_request = {request_id_for(run, id): id for id in self._order}
        return self._by_request.get(request)

    def _leave(self, message: Message[Any, Any]) -> None:
        self._left.add(message.id)
        try:
            message.nack(visibility_timeout=self._mailbox.limits.rounded(OTHER_RUN_DELAY))
        except MailboxError as error:
            logger.debug("%s: a lease will run out instead: %s", self._mailbox.name, error)

    def _remove(self, leases: list[Lease]) -> None:
        """Acknowledge messages; those that cannot be acknowledged will be received again."""
        for some in self._batches(leases):
            try:
                self._mailbox.acknowledge_batch([lease.message for lease in some])
            except MailboxError as error:
                logger.warning("%s: results stay behind: %s", self._mailbox.name, error)
            self._drop(some)

    def _batches(self, leases: list[Lease]) -> Iterable[list[Lease]]:
        size = self._mailbox.limits.max_batch
        for start in range(0, len(leases), size):
            yield leases[start : start + size]

    def _drop(self, leases: list[Lease]) -> None:
        for lease in leases:
            lease.release()
            self._held.pop(lease.message.id, None)
            self._singles.pop(lease.message.id, None)


def _count(
    counted: dict[tuple[str, str], EvalResult], key: tuple[str, str], result: EvalResult
) -> None:
    """Count each sample once: the first result counts, but a success replaces an error."""
    known = counted.get(key)
    # Replaying a dead letter can produce a success after an error.
    if known is None or (known.error is not None and result.error is None):
        counted[key] = result
