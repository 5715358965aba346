"""Sending a data set to the workers."""

from typing import Any

from weakincentives.ids import new_id
from weakincentives.runtime import InvalidParameterError, Mailbox

from .dataset import Dataset
from .messages import EvalRequest, EvalResult, message_id_for, request_for

__all__ = ["submit_dataset"]

BATCH = 100


def submit_dataset(
    dataset: Dataset[Any, Any],
    requests: Mailbox[EvalRequest[Any, Any], EvalResult],
    *,
    reply_to: Mailbox[EvalResult, None],
    run_id: str | None = None,
) -> str:
    """Send every sample to the workers, in batches, and return the run's id.

    Cut off in the middle, it can be repeated with the same ``run_id``: a sample that is still
    queued, or was sent within the last five minutes, is not sent twice (on SQS it is, and its
    second result is not counted). For that reason an id is for one run only. Told none, the run
    gets an id of its own.
    """
    if reply_to is None:
        raise InvalidParameterError("reply_to must be the mailbox that gets the results, not None")
    run = run_id if run_id is not None else new_id()
    size = min(BATCH, requests.limits.max_send_batch)
    for start in range(0, len(dataset), size):
        batch = dataset.samples[start : start + size]
        requests.send_batch(
            [request_for(run, sample) for sample in batch],
            reply_to=reply_to,
            message_ids=[message_id_for(run, sample.id) for sample in batch],
        )
    return run
