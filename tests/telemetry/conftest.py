"""Configures OpenTelemetry's SDK once for the process, as an application does. Each file sees its own telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.coroutines import pytest_pyfunc_call, runner

__all__ = ["pytest_pyfunc_call", "runner"]


@pytest.fixture(scope="session")
def provider() -> TracerProvider:
    """Of traces."""
    made = TracerProvider()
    trace.set_tracer_provider(made)
    return made


@pytest.fixture(scope="module")
def exporter(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    """Takes the spans of a file's tests."""
    memory = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield memory
    memory.shutdown()


@pytest.fixture(scope="session")
def reader() -> InMemoryMetricReader:
    """Takes the metrics of the process."""
    made = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([made]))
    return made
