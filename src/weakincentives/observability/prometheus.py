"""Metrics for Prometheus, on the page ``/metrics`` of the health server."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime import events as loops
from weakincentives.runtime.mailbox import events as mailboxes
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children

from .metrics import METRICS, Metric
from .observe import ServedMailbox
from .queue_gauges import QueueGauges, QueueReading
from .subscriptions import Subscriptions
from .tally import Tally

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import CollectorRegistry

__all__ = ["PrometheusMetrics"]

Sample = tuple[tuple[str, ...], float]
"""The values of labels, and a number."""
RECENT = 0.1
"""How much the latest job counts in the mean time of recent ones."""


class Jobs:
    """The jobs of one mailbox; their number is bounded by the loops of the process."""

    __slots__ = ("mean_seconds", "outcomes", "running", "started")

    def __init__(self) -> None:
        self.started = 0
        self.running: set[str] = set()
        """The ids of their messages."""
        self.outcomes: dict[str, int] = {}
        self.mean_seconds: float | None = None


class PrometheusMetrics:
    """A subscriber that counts events, and shows them and the queues to Prometheus.

    The metrics are registered with ``registry``, by default that of `prometheus_client`, which the
    health server shows. One object serves any number of backends, loops and groups.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        try:
            import prometheus_client.core
        except ImportError as error:
            raise InvalidParameterError(
                "PrometheusMetrics needs a package: pip install 'weakincentives[prometheus]'"
            ) from error
        self._tally = Tally()
        self._queues = QueueGauges()
        self._begin_anew()
        begin_anew_in_children(self)
        self._subscriptions = Subscriptions(self._handlers())
        self._families: Any = prometheus_client.core
        (prometheus_client.REGISTRY if registry is None else registry).register(self)

    def _begin_anew(self) -> None:
        self._jobs: dict[str, Jobs] = {}

    def subscribe_to(self, dispatcher: Dispatcher) -> None:
        """Count the events of a dispatcher."""
        self._subscriptions.add(dispatcher)

    def watch(self, served: ServedMailbox) -> None:
        """Show how full this queue is, from now on."""
        self._queues.add(served)
        # Counters begin at 0 and not at their first 1, which Prometheus would not see as a change.
        name = served.mailbox.name
        if served.places:
            self._jobs.setdefault(name, Jobs())
        for metric in METRICS:
            is_for_it = served.has_dead_letters or not metric.name.startswith("dlq_")
            of_mailbox = metric.labels == ("mailbox",) and not metric.name.startswith("wink_jobs")
            if metric.kind == "counter" and of_mailbox and is_for_it:
                self._tally.count(metric.name, name, 0)

    def describe(self) -> "Iterable[Family]":
        """Return the metrics without their numbers; a registry refuses names that it has."""
        return [self._family(metric) for metric in METRICS]

    def collect(self) -> "Iterator[Family]":
        """Yield all metrics; this asks the queues, and waits half a second for them at most."""
        computed = self._computed(list(self._queues.read()))
        for metric in METRICS:
            family = self._family(metric)
            for labels, number in (*self._tally.counts(metric.name), *computed[metric.name]):
                family.add_metric(labels, number)
            for labels, counts, total in self._tally.histograms(metric.name):
                family.add_metric(labels, _buckets(metric, counts), total)
            yield family

    def _family(self, metric: Metric) -> Any:
        make = getattr(self._families, f"{metric.kind.capitalize()}MetricFamily")
        return make(metric.name, metric.help, labels=metric.labels)

    def _computed(self, readings: list[QueueReading]) -> dict[str, list[Sample]]:
        """Return the labels and the number of each gauge, and of each counter of jobs."""
        found: dict[str, list[Sample]] = defaultdict(list)
        for name, stats, is_up, places, has_dead_letters in readings:
            found["wink_queue_up"].append(((name,), float(is_up)))
            if places:
                found["wink_job_places"].append(((name,), places))
            if stats is None:
                continue
            for state in ("pending", "in_flight", "delayed", "unreadable"):
                found["wink_queue_messages"].append(((name, state), getattr(stats, state)))
            age = stats.oldest_age_seconds or 0.0
            found["wink_queue_oldest_age_seconds"].append(((name,), age))
            found["wink_queue_paused"].append(((name,), float(stats.paused)))
            jobs = self._jobs.get(name)
            if jobs is not None and jobs.mean_seconds is not None:
                work = stats.pending * jobs.mean_seconds
                found["wink_backlog_seconds"].append(((name,), work))
            if has_dead_letters:
                found["dlq_queue_depth"].append(((name,), stats.total))
        with self._tally.lock:
            for name, jobs in self._jobs.items():
                found["wink_jobs_started"].append(((name,), jobs.started))
                found["wink_jobs_running"].append(((name,), len(jobs.running)))
                for outcome, number in jobs.outcomes.items():
                    found["wink_jobs"].append(((name, outcome), number))
        return found

    # --- events ----------------------------------------------------------------------------

    def _handlers(self) -> dict[type, Callable[[Any], None]]:
        count, one = self._tally.count, self._tally.counter_of

        def number_of(metric: str) -> Callable[[Any], None]:
            return lambda event: count(metric, event.mailbox, event.count)

        return {
            mailboxes.MessageSent: one("wink_messages_sent"),
            mailboxes.SendFailed: lambda event: count(
                "wink_sends_failed", (event.mailbox, event.error_type), len(event.message_ids)
            ),
            mailboxes.MessageReceived: self._received(),
            mailboxes.MessageAcknowledged: one("wink_messages_acknowledged"),
            mailboxes.MessageNacked: lambda event: count(
                "wink_messages_nacked", (event.mailbox, event.how)
            ),
            mailboxes.MessageCancelled: one("wink_messages_cancelled"),
            mailboxes.MessageReplied: one("wink_replies_sent"),
            mailboxes.LeaseExtended: one("wink_leases_extended"),
            mailboxes.LeaseLost: one("wink_leases_lost"),
            mailboxes.LeasesExpired: number_of("wink_leases_expired"),
            mailboxes.MessagesDropped: self._removed("wink_messages_dropped"),
            mailboxes.MessagesPurged: self._removed("wink_messages_purged"),
            mailboxes.MessagesSetAside: number_of("wink_messages_set_aside"),
            mailboxes.QueuePaused: one("wink_queue_pauses"),
            mailboxes.QueueResumed: one("wink_queue_resumes"),
            loops.MailboxUnreachable: one("wink_receive_failures"),
            loops.JobStarted: self._started,
            loops.JobFinished: self._finished,
            loops.JobFailed: self._failed,
            loops.JobSkipped: self._ended("skipped"),
            loops.JobCancelled: self._ended("cancelled"),
            loops.JobGivenBack: self._ended("given_back"),
            loops.JobPutOff: self._ended("put_off"),
            loops.JobAbandoned: self._ended("abandoned"),
            loops.MessageDeadLettered: self._dead_lettered,
            loops.DeadLetterReplayed: one("dlq_messages_replayed"),
            loops.DeadLetterProcessed: self._processed,
        }

    def _received(self) -> Callable[[mailboxes.MessageReceived], None]:
        tally = self._tally
        received, histogram = tally.counter_of("wink_messages_received"), tally.histogram
        redelivered = tally.counter_of("wink_messages_redelivered")

        def count(event: mailboxes.MessageReceived) -> None:
            received(event)
            if event.waited is not None:
                with tally.lock:
                    histogram("wink_message_wait_seconds", event.mailbox).add(event.waited)
            elif event.delivery_count > 1:
                redelivered(event)

        return count

    def _removed(self, metric: str) -> Callable[[Any], None]:
        def removed(event: Any) -> None:
            self._tally.count(metric, event.mailbox, event.count)
            if self._queues.holds_dead_letters(event.mailbox):
                self._tally.count("dlq_messages_discarded", event.mailbox, event.count)

        return removed

    def _started(self, event: loops.JobStarted) -> None:
        mailbox = event.mailbox
        with self._tally.lock:
            jobs = self._jobs.get(mailbox)
            if jobs is None:
                jobs = self._jobs[mailbox] = Jobs()
            jobs.started += 1
            jobs.running.add(event.message_id)

    def _finished(self, event: loops.JobFinished) -> None:
        self._end(event, "finished", event.seconds)

    def _failed(self, event: loops.JobFailed) -> None:
        self._end(event, event.outcome, event.seconds)

    def _ended(self, outcome: str) -> Callable[[Any], None]:
        return lambda event: self._end(event, outcome, None)

    def _end(self, event: Any, outcome: str, seconds: float | None) -> None:
        mailbox = event.mailbox
        with self._tally.lock:
            jobs = self._jobs.get(mailbox)
            if jobs is None:
                jobs = self._jobs[mailbox] = Jobs()
            jobs.running.discard(event.message_id)
            jobs.outcomes[outcome] = jobs.outcomes.get(outcome, 0) + 1
            if seconds is not None:
                mean = seconds if jobs.mean_seconds is None else jobs.mean_seconds
                jobs.mean_seconds = mean + RECENT * (seconds - mean)
                self._tally.histogram("wink_job_seconds", mailbox).add(seconds)

    def _dead_lettered(self, event: loops.MessageDeadLettered) -> None:
        self._queues.note_dead_letters(event.to)
        self._tally.count("dlq_messages_sent", (event.mailbox, event.error_type))

    def _processed(self, event: loops.DeadLetterProcessed) -> None:
        tally = self._tally
        self._queues.note_dead_letters(event.mailbox)
        tally.count("dlq_messages_processed", (event.source, event.error_type))
        tally.record("dlq_message_age_seconds", event.mailbox, event.age_seconds)
        tally.record("dlq_processing_duration_ms", event.mailbox, event.seconds * 1000)


def _buckets(metric: Metric, counts: list[int]) -> list[tuple[str, float]]:
    """Return the number of values up to each bound, the last of which is infinite."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, metric.buckets), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
