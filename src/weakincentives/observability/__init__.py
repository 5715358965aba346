"""Metrics, traces and logs of mailboxes and loops: subscribers of their events."""

from .event_log import EventLog
from .observe import Subscriber, observe
from .opentelemetry import OpenTelemetry
from .prometheus import PrometheusMetrics

__all__ = ["EventLog", "OpenTelemetry", "PrometheusMetrics", "Subscriber", "observe"]
