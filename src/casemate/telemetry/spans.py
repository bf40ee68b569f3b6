"""Makes the span of an execution and its child spans. Loaded only if OpenTelemetry's API is loaded already.

Names follow OpenTelemetry's semantic conventions where these define one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from casemate.telemetry.timeline import Detail, Phase, Timeline, some_of
from casemate.version import __version__

_TRACER = trace.get_tracer("casemate", __version__)
_W3C = TraceContextTextMapPropagator()  # the configured propagator would pass a caller's baggage on to MCP servers
_NAMES = {
    "tool": "gen_ai.tool.name", "host": "server.address", "port": "server.port", "exit_code": "process.exit.code",
}  # fmt: skip


def begin(timeline: Timeline) -> Span | None:
    """Start an execution's span as a child of the current span. None without an SDK and without a trace to join."""
    facts = timeline.facts
    name = f"{facts['kind']} {facts.get('language', '')}"
    span = _TRACER.start_span(name, attributes=_attributes(facts), start_time=timeline.asked)
    return span if span.get_span_context().is_valid else None


def end(span: Span, phases: Iterable[Phase], now: int, outcome: Detail) -> None:
    """Add the phases of an execution to its span, and end the span."""
    for phase in phases if span.is_recording() else ():
        if phase.name == "decision":
            span.add_event(phase.name, _attributes(phase.facts), phase.stop)
        elif phase.name != "execution":
            _add_child(span, phase)
    span.set_attributes(_attributes(some_of(outcome, "status", "exit_code", "cpu_seconds", "peak_memory")))
    if (status := outcome.get("status", "")) != "ok":
        _fail(span, outcome.get("cause") or outcome.get("kind") or status)
    span.end(now)


def use(span: Span) -> AbstractContextManager[object]:
    """A context with ``span`` as the current span."""
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def use_caller(given: Mapping[str, str]) -> AbstractContextManager[object]:
    """A context with the span named by W3C headers as the current span; none if the headers are malformed."""
    return use(trace.get_current_span(_W3C.extract(given)))


def headers() -> dict[str, str]:
    """The W3C headers of the current span."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier


def _add_child(parent: Span, phase: Phase) -> None:
    name, attributes = phase.name, _attributes(phase.facts)
    if phase.name == "tool":
        name = f"execute_tool {phase.facts['tool']}"
        attributes |= {"gen_ai.operation.name": "execute_tool", "mcp.method.name": "tools/call"}
    kind = SpanKind.CLIENT if phase.name in ("tool", "egress") else SpanKind.INTERNAL
    began = min(phase.start, phase.stop)
    child = _TRACER.start_span(name, trace.set_span_in_context(parent), kind, attributes, start_time=began)
    if phase.error:
        _fail(child, phase.error)
    child.end(phase.stop)


def _fail(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def _attributes(facts: Detail) -> dict[str, Any]:
    return {_NAMES.get(name, f"casemate.{name}"): value for name, value in facts.items()}
