"""Traces and metrics for OpenTelemetry, by its conventions for messaging."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime import events as loops
from weakincentives.runtime.mailbox import events as mailboxes
from weakincentives.runtime.mailbox.errors import InvalidParameterError

from .observe import ServedMailbox
from .span_table import Key, OpenSpan, SpanTable
from .subscriptions import Subscriptions

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, TracerProvider

__all__ = ["OpenTelemetry"]

SYSTEM = "weakincentives"
# Names of the conventions.
DESTINATION, MESSAGE_ID = "messaging.destination.name", "messaging.message.id"
OPERATION, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
MESSAGING_SYSTEM, ERROR_TYPE = "messaging.system", "error.type"
BATCH_SIZE, CONVERSATION = "messaging.batch.message_count", "messaging.message.conversation_id"
# Our own.
DELIVERY_COUNT, OUTCOME = "weakincentives.delivery_count", "weakincentives.outcome"
REFERENCE, WAITED = "weakincentives.reference", "weakincentives.wait_seconds"

MOST_DESTINATIONS = 1000
"""How many mailboxes the metrics tell apart: senders choose the names of reply mailboxes."""
OTHER = "(other)"
"""The name of all others."""


class OpenTelemetry:
    """A subscriber that makes spans of sends, receives and jobs, and carries their context along.

    The context of a send (W3C ``traceparent``, or whatever propagator is configured) rides in the
    attributes of its messages. The worker's span, and those of its replies and dead letters, belong
    to the same trace. Providers default to the global ones.
    """

    def __init__(
        self,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
    ) -> None:
        try:
            from opentelemetry import context, metrics, propagate, trace
        except ImportError as error:
            raise InvalidParameterError(
                "OpenTelemetry needs a package: pip install 'weakincentives[otel]'"
            ) from error
        self._attach, self._no_context = context.attach, context.Context
        self._trace: Any = trace
        self._propagate: Any = propagate
        self._tracer = trace.get_tracer("weakincentives", tracer_provider=tracer_provider)
        meter = metrics.get_meter("weakincentives", meter_provider=meter_provider)
        self._sent_messages = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages sent, or that could not be"
        )
        self._consumed_messages = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Deliveries to this process"
        )
        self._send_duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "How long sends took"
        )
        self._process_duration = meter.create_histogram(
            "messaging.process.duration", "s", "How long handlers ran"
        )
        self._sends, self._jobs = SpanTable(), SpanTable()
        self._destinations: set[str] = set()
        self._subscriptions = Subscriptions(self._handlers())

    def subscribe_to(self, dispatcher: Dispatcher) -> None:
        """Make spans of the events of a dispatcher."""
        self._subscriptions.add(dispatcher)

    def watch(self, served: ServedMailbox) -> None:
        """Do nothing: only events are traced."""

    def _handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            mailboxes.MessageSending: self._sending,
            mailboxes.MessageSent: self._sent,
            mailboxes.SendFailed: self._send_failed,
            mailboxes.MessageReceived: self._received,
            mailboxes.MessageReplied: self._replied,
            loops.JobStarted: self._job_started,
            loops.JobFinished: self._job_finished,
            loops.JobFailed: self._job_failed,
            loops.JobSkipped: self._job_ended("skipped"),
            loops.JobCancelled: self._job_ended("cancelled"),
            loops.JobGivenBack: self._job_ended("given_back"),
            loops.JobPutOff: self._job_ended("put_off"),
            loops.JobAbandoned: self._job_ended("abandoned"),
        }

    # --- sending ---------------------------------------------------------------------------

    def _sending(self, event: mailboxes.MessageSending) -> None:
        attributes, ids = event.attributes, event.message_ids
        facts = self._facts(event.mailbox, "send", "send")
        if len(ids) == 1:
            facts[MESSAGE_ID] = ids[0]
        else:
            facts[BATCH_SIZE] = len(ids)
        span = self._tracer.start_span(
            f"send {event.mailbox}",
            self._context_of_cause(event.cause),
            self._trace.SpanKind.PRODUCER,
            facts,
            self._links_to(attributes),
        )
        # Replaced as a whole: the state of another trace must not stay beside the new parent.
        for field in self._propagate.get_global_textmap().fields:
            attributes.pop(field, None)
        self._propagate.inject(attributes, self._trace.set_span_in_context(span))
        self._sends.begin((event.mailbox, ids[-1]), OpenSpan(span, time.monotonic()))

    def _sent(self, event: mailboxes.MessageSent) -> None:
        of_metric = self._of_metric(event.mailbox, "send")
        self._sent_messages.add(1, of_metric)
        sending = self._sends.end((event.mailbox, event.message_id))
        if sending is not None:
            self._send_duration.record(time.monotonic() - sending.began, of_metric)
            sending.span.end()

    def _send_failed(self, event: mailboxes.SendFailed) -> None:
        of_metric = {**self._of_metric(event.mailbox, "send"), ERROR_TYPE: event.error_type}
        self._sent_messages.add(len(event.message_ids), of_metric)
        sending = self._sends.end((event.mailbox, event.message_ids[-1]))
        if sending is not None:
            self._send_duration.record(time.monotonic() - sending.began, of_metric)
            self._fail(sending.span, event.error_type)
            sending.span.end()

    def _context_of_cause(self, cause: Any) -> "Context | None":
        """Return the context for a send because of a message; None means the current one."""
        if cause is None:
            return None
        mailbox = getattr(getattr(cause, "mailbox", None), "name", "-")
        of_job = self._jobs.context_of((mailbox, cause.id))
        if of_job is not None:
            return self._in_context(of_job)
        return self._extracted(getattr(cause, "attributes", None))

    # --- receiving -------------------------------------------------------------------------

    def _received(self, event: mailboxes.MessageReceived) -> None:
        self._consumed_messages.add(1, self._of_metric(event.mailbox, "receive"))
        facts = self._facts(event.mailbox, "receive", "receive", event.message_id)
        facts[DELIVERY_COUNT] = event.delivery_count
        if event.waited is not None:
            facts[WAITED] = event.waited
        is_inside = self._trace.get_current_span().get_span_context().is_valid
        self._tracer.start_span(
            f"receive {event.mailbox}",
            None if is_inside else self._extracted(event.attributes),
            self._trace.SpanKind.CONSUMER,
            facts,
            self._links_to(event.attributes) if is_inside else (),
        ).end()

    def _replied(self, event: mailboxes.MessageReplied) -> None:
        if event.to is not None:
            return  # that was a send, and has a span
        facts = self._facts(event.mailbox, "reply", "send", event.message_id)
        facts[CONVERSATION] = event.reply_id
        of_job = self._jobs.context_of((event.mailbox, event.message_id))
        self._tracer.start_span(
            f"reply {event.mailbox}",
            None if of_job is None else self._in_context(of_job),
            self._trace.SpanKind.PRODUCER,
            facts,
        ).end()

    # --- jobs ------------------------------------------------------------------------------

    def _job_started(self, event: loops.JobStarted) -> None:
        facts = self._facts(event.mailbox, "process", "process", event.message_id)
        facts[DELIVERY_COUNT] = event.delivery_count
        parent = self._extracted(event.attributes)
        span = self._tracer.start_span(
            f"process {event.mailbox}", parent, self._trace.SpanKind.CONSUMER, facts
        )
        self._jobs.begin((event.mailbox, event.message_id), OpenSpan(span, time.monotonic()))
        # For the handler: a job begins in a copy of the context, which ends with the job. So there
        # is nothing to detach.
        self._attach(self._trace.set_span_in_context(span, parent))

    def _job_finished(self, event: loops.JobFinished) -> None:
        self._end_job((event.mailbox, event.message_id), "finished")

    def _job_failed(self, event: loops.JobFailed) -> None:
        key = event.mailbox, event.message_id
        self._end_job(key, event.outcome, event.error_type, event.reference)

    def _job_ended(self, outcome: str) -> Callable[[Any], None]:
        return lambda event: self._end_job((event.mailbox, event.message_id), outcome)

    def _end_job(
        self, key: Key, outcome: str, error_type: str | None = None, reference: str | None = None
    ) -> None:
        job = self._jobs.end(key)
        if job is None:
            return  # no handler was called, or it has failed at its time limit
        of_metric = self._of_metric(key[0], "process")
        job.span.set_attribute(OUTCOME, outcome)
        if error_type is not None:
            of_metric[ERROR_TYPE] = error_type
            self._fail(job.span, error_type)
        if reference is not None:
            job.span.set_attribute(REFERENCE, reference)
        self._process_duration.record(time.monotonic() - job.began, of_metric)
        job.span.end()

    # --- what spans and metrics say --------------------------------------------------------

    def _facts(
        self, mailbox: str, operation: str, kind: str, message_id: str | None = None
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            MESSAGING_SYSTEM: SYSTEM,
            DESTINATION: mailbox,
            OPERATION: operation,
            OPERATION_TYPE: kind,
        }
        if message_id is not None:
            facts[MESSAGE_ID] = message_id
        return facts

    def _of_metric(self, mailbox: str, operation: str) -> dict[str, Any]:
        if mailbox not in self._destinations:
            if len(self._destinations) >= MOST_DESTINATIONS:
                mailbox = OTHER
            else:
                self._destinations.add(mailbox)
        return {MESSAGING_SYSTEM: SYSTEM, DESTINATION: mailbox, OPERATION: operation}

    def _fail(self, span: "Span", error_type: str) -> None:
        span.set_attribute(ERROR_TYPE, error_type)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))

    # --- contexts --------------------------------------------------------------------------

    def _extracted(self, attributes: Mapping[str, str] | None) -> "Context":
        """Return the context that a message carries, and nothing of the current one."""
        extracted: Context = self._propagate.extract(attributes or {}, self._no_context())
        return extracted

    def _links_to(self, attributes: Mapping[str, str] | None) -> "list[Link]":
        """Return a link to the context that attributes carry, if they carry one."""
        found = self._trace.get_current_span(self._extracted(attributes)).get_span_context()
        return [self._trace.Link(found)] if found.is_valid else []

    def _in_context(self, parent: Any) -> "Context":
        parent = self._trace.NonRecordingSpan(parent)
        context: Context = self._trace.set_span_in_context(parent, self._no_context())
        return context
