"""Sends a data set to the workers."""

from typing import Any

from weakincentives.errors import WinkError
from weakincentives.ids import new_id
from weakincentives.logs import get_logger
from weakincentives.runtime import InvalidParameterError, Mailbox
from weakincentives.runtime.mailbox.send import stored_of

from .collection import peek_results
from .dataset import Dataset
from .messages import EvalRequest, EvalResult, message_id_for, request_for

__all__ = [
    "RunIsOverError",
    "has_exact_counts",
    "refuse_if_over",
    "send_samples",
    "submit_dataset",
    "without_results",
]

logger = get_logger(__name__)

BATCH = 100


class RunIsOverError(WinkError):
    """The samples of a run that has ended were submitted again too soon."""


def submit_dataset(
    dataset: Dataset[Any, Any],
    requests: Mailbox[EvalRequest[Any, Any], EvalResult],
    *,
    reply_to: Mailbox[EvalResult, None],
    run_id: str | None = None,
) -> str:
    """Send every sample to the workers, in batches, and return the run's id.

    If this is interrupted, repeat it with the same ``run_id``, at any later time: a sample that is
    still queued, or has a result in ``reply_to``, is not sent again. (On SQS a queued one is, but
    its second result is not counted.) While another process collects results from there, they are
    not all visible; then this raises ``WinkError`` and sends nothing. After its results were
    collected the run is over: for five minutes this raises ``WinkError`` for its id, because the
    samples count as repeats; then the id starts a new run. Without ``run_id``, the run gets a new
    id, and all samples are sent.
    """
    if reply_to is None:
        raise InvalidParameterError("reply_to must be the mailbox for the results, not None")
    if run_id is None:
        run_id = new_id()
        send_samples(dataset, requests, reply_to, run_id)
        return run_id
    rest = without_results(dataset, reply_to, run_id)
    sent = send_samples(rest, requests, reply_to, run_id)
    if sent < len(rest):
        refuse_if_over(dataset, requests, reply_to, run_id)
        logger.warning(
            "run %s: sent %d of %d samples; %d were sent before and are queued, or were evaluated "
            "within the last five minutes",
            run_id,
            sent,
            len(dataset),
            len(rest) - sent,
        )
    return run_id


def has_exact_counts(mailbox: object) -> bool:
    """Return whether a mailbox that counts no messages has none."""
    capabilities = getattr(mailbox, "capabilities", None)
    return capabilities is not None and bool(capabilities.exact_counts)


def refuse_if_over(
    dataset: Dataset[Any, Any],
    requests: Mailbox[EvalRequest[Any, Any], EvalResult],
    results: Mailbox[EvalResult, None],
    run_id: str,
) -> None:
    """Raise if samples that were not sent, as repeats, certainly have no request nor result."""
    # In this order: a worker sends the result before it acknowledges the request.
    if not has_exact_counts(requests) or requests.approximate_count():
        return
    found, all_seen = peek_results(results, dataset=dataset, run_id=run_id)
    if all_seen and not found.complete:
        raise RunIsOverError(
            f"run {run_id} is over: {found.missing_count} of its {len(dataset)} samples were sent "
            f"within the last five minutes, and are not sent again; use another id"
        )


def without_results(
    dataset: Dataset[Any, Any], results: Mailbox[EvalResult, None], run_id: str
) -> Dataset[Any, Any]:
    """Return the samples without a result; raise if not all results are visible."""
    found, all_seen = peek_results(results, dataset=dataset, run_id=run_id)
    if not all_seen:
        raise WinkError(
            f"not all results of run {run_id} are visible, because another process is "
            f"collecting them or was until a moment ago: nothing was sent, try again later"
        )
    return dataset.without(result.sample_id for result in found.results)


def send_samples(
    samples: Dataset[Any, Any],
    requests: Mailbox[EvalRequest[Any, Any], EvalResult],
    results: Mailbox[EvalResult, None],
    run_id: str,
) -> int:
    """Send samples in batches, no sample twice within five minutes; return how many were sent."""
    sent = 0
    size = min(BATCH, requests.limits.max_send_batch)
    for start in range(0, len(samples), size):
        batch = samples.samples[start : start + size]
        ids = requests.send_batch(
            [request_for(run_id, sample) for sample in batch],
            reply_to=results,
            message_ids=[message_id_for(run_id, sample.id) for sample in batch],
        )
        stored = stored_of(ids)
        sent += len(batch) if stored is None else stored
    return sent
