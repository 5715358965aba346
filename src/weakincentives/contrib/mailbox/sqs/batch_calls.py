"""Calls SQS's batch APIs, ten entries at a time, and retries entries that failed temporarily."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weakincentives.runtime.mailbox.errors import MailboxError

from .errors import THROTTLED, Place, plain_code, translated

__all__ = ["PER_CALL", "Calls", "Entries", "batches", "in_tens"]

PER_CALL = 10
LAST_ATTEMPT = 3

Entries = dict[int, dict[str, Any]]
"""Requests, or their errors, by their index in the caller's list."""


class Calls:
    """The API calls of one queue."""

    def __init__(self, queue_url: str, place: Place) -> None:
        self._url = queue_url
        self._place = place

    def call(self, method: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
        """Call one API of the queue."""
        with translated(self._place):
            return method(QueueUrl=self._url, **request)  # type: ignore[no-any-return]

    def batch(self, method: Callable[..., Any], entries: Entries) -> Entries:
        """Call a batch API, and retry temporary failures; return the entries that failed."""
        failed: Entries = {}
        faults: Entries = {}
        attempt = 0
        while True:
            request = [{"Id": str(n), **entry} for n, entry in entries.items()]
            try:
                answer = self.call(method, {"Entries": request})
            except MailboxError:
                if not attempt:
                    raise
                # The others of the batch are done: it must not look as if nothing was.
                return failed | {n: faults[n] | {"SenderFault": False} for n in entries}
            faults = {int(fault["Id"]): fault for fault in answer.get("Failed", [])}
            unlucky = {n for n, fault in faults.items() if _worth_a_retry(fault)}
            failed |= {n: fault for n, fault in faults.items() if n not in unlucky}
            entries = {n: entry for n, entry in entries.items() if n in unlucky}
            if not entries or attempt == LAST_ATTEMPT:
                return failed | {n: faults[n] | {"SenderFault": False} for n in entries}
            time.sleep(random.uniform(0.05, 0.1) * 2**attempt)
            attempt += 1


def batches(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Split messages of these sizes, in order, into calls of at most ten and ``most`` bytes."""
    batch: list[int] = []
    total = 0
    for n, size in enumerate(sizes):
        if batch and (len(batch) == PER_CALL or total + size > most):
            yield batch
            batch, total = [], 0
        batch.append(n)
        total += size
    if batch:
        yield batch


def in_tens(entries: Entries) -> Iterator[Entries]:
    """Split entries into groups of ten, the most that one call takes."""
    items = list(entries.items())
    for start in range(0, len(items), PER_CALL):
        yield dict(items[start : start + PER_CALL])


def _worth_a_retry(fault: dict[str, Any]) -> bool:
    return not fault.get("SenderFault", False) or plain_code(fault.get("Code")) in THROTTLED
