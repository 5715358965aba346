"""What the tests of telemetry share."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.services import redis_url
from weakincentives.observability import OpenTelemetry, PrometheusMetrics

__all__ = ["redis_url"]


class Page:
    """A page of metrics, as Prometheus reads it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(self.registry)

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return samples_of(generate_latest(self.registry).decode())

    def __call__(self, name: str, *labels: str) -> float | None:
        return self.samples().get((name, labels))


def samples_of(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Read a page with the official parser; histograms are left with their count and sum.

    The labels are in the order of their names, but for a mailbox and a source, which come first.
    """
    found = [
        ((one.name, tuple(one.labels[name] for name in sorted(one.labels, key=_order))), one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if not one.name.endswith("_bucket")
    ]
    assert len(found) == len(dict(found)), "a series is there twice"
    return dict(found)


def _order(label: str) -> tuple[bool, str]:
    return label not in ("mailbox", "source"), label


@pytest.fixture
def page() -> Page:
    return Page()


class Recorder:
    """OpenTelemetry into memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self._reader = InMemoryMetricReader()
        self.telemetry = OpenTelemetry(provider, MeterProvider([self._reader]))

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return [span for span in found if name is None or span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def parent_of() -> Callable[[ReadableSpan], int | None]:
    return lambda span: None if span.parent is None else span.parent.span_id
