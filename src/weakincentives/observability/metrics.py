"""The names, the meaning and the labels of the metrics."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric"]

SECONDS = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
AGES = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0)
MILLISECONDS = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10_000.0, 60_000.0, 300_000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a counter's name on the page ends in ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("mailbox",)
    buckets: tuple[float, ...] = ()


METRICS = (
    Metric("wink_messages_sent", "counter", "Messages sent by this process"),
    Metric(
        *("wink_sends_failed", "counter", "Messages that this process could not send"),
        ("mailbox", "error_type"),
    ),
    Metric("wink_messages_received", "counter", "Deliveries to this process"),
    Metric("wink_messages_redelivered", "counter", "Deliveries that were not a message's first"),
    Metric("wink_messages_acknowledged", "counter", "Messages finished and removed"),
    Metric(
        *("wink_messages_nacked", "counter", "Messages given back: failed, put_off or undone"),
        ("mailbox", "how"),
    ),
    Metric("wink_messages_dropped", "counter", "Messages older than the retention, removed unread"),
    Metric(
        "wink_messages_cancelled", "counter", "Messages that this process has cancelled by their id"
    ),
    Metric("wink_messages_purged", "counter", "Messages removed by a purge of this process"),
    Metric("wink_messages_set_aside", "counter", "Unreadable records moved out of the queue"),
    Metric("wink_replies_sent", "counter", "Replies sent, to mailboxes and to waiting callers"),
    Metric("wink_leases_extended", "counter", "Extensions of leases"),
    Metric("wink_leases_expired", "counter", "Leases that this process found to have run out"),
    Metric(
        "wink_leases_lost",
        "counter",
        "Settlements and extensions refused because the lease had ended",
    ),
    Metric("wink_receive_failures", "counter", "Receives that failed; the loop tries again"),
    Metric("wink_jobs_started", "counter", "Calls of a handler"),
    Metric("wink_jobs", "counter", "What became of messages in a loop", ("mailbox", "outcome")),
    Metric("wink_jobs_running", "gauge", "Handlers at work in this process"),
    Metric("wink_job_places", "gauge", "Jobs that the loops of this process run at once"),
    Metric(
        *("wink_job_seconds", "histogram", "How long handlers ran"),
        ("mailbox",),
        SECONDS,
    ),
    Metric(
        *("wink_message_wait_seconds", "histogram", "From sending to the first delivery"),
        ("mailbox",),
        SECONDS,
    ),
    Metric(
        *("wink_queue_messages", "gauge", "Messages: pending, in_flight, delayed or unreadable"),
        ("mailbox", "state"),
    ),
    Metric("wink_queue_oldest_age_seconds", "gauge", "Age of the oldest pending message, else 0"),
    Metric("wink_queue_paused", "gauge", "1 if the queue is paused, else 0"),
    Metric("wink_queue_pauses", "counter", "Times that this process has paused the queue"),
    Metric("wink_queue_resumes", "counter", "Times that this process has resumed the queue"),
    Metric("wink_queue_up", "gauge", "1 if the queue could be counted a moment ago, else 0"),
    Metric(
        *("wink_backlog_seconds", "gauge"),
        "Work that waits: pending messages times the mean time of a recent job",
    ),
    Metric(
        *("dlq_messages_sent", "counter", "Messages sent to the dead letters"),
        ("source", "error_type"),
    ),
    Metric(
        *("dlq_messages_processed", "counter", "Dead letters that a DLQConsumer has handled"),
        ("source", "error_type"),
    ),
    Metric("dlq_messages_replayed", "counter", "Dead letters sent to their source again"),
    Metric("dlq_messages_discarded", "counter", "Dead letters purged, or dropped by the retention"),
    Metric("dlq_queue_depth", "gauge", "Dead letters in the queue"),
    Metric(
        *("dlq_message_age_seconds", "histogram", "Age of dead letters when they are handled"),
        ("mailbox",),
        AGES,
    ),
    Metric(
        *("dlq_processing_duration_ms", "histogram", "How long handlers of dead letters ran"),
        ("mailbox",),
        MILLISECONDS,
    ),
)
"""Every metric, in the order of the page."""
