"""Takes the record's rows as they are written, and passes trace contexts in and out.

This module never loads OpenTelemetry: an application that configured an SDK has loaded its API. Without it, a row costs
one dictionary lookup.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from casemate.telemetry.timeline import TOLD, Detail, Timeline, some_of

_MOST_ROWS = 1000  # rows kept of one execution: a program may call tools without end

TURN: ContextVar[tuple[int, int] | None] = ContextVar("turn", default=None)
"""When the execution of this context joined the queue and when it left it, in nanoseconds of Unix time."""

_going: dict[str, Timeline] = {}


def observe(kind: str, run: str, namespace: str, detail: Detail) -> None:
    """Take a row that was written. An intent must come in the caller's context, other kinds from anywhere."""
    if kind == "intent":
        if (spans := _spans()) or _metrics():
            _begin(run, namespace, detail, spans)
    elif (timeline := _going.get(run)) is None:
        if kind == "queue" and (metrics := _metrics()):
            metrics.record("refusals", 1, {"kind": "queue"})
    elif kind != "outcome":
        if len(timeline.rows) < _MOST_ROWS:
            timeline.rows.append((time.time_ns(), kind, some_of(detail, *TOLD)))
    else:
        del _going[run]
        now = time.time_ns()
        phases = list(timeline.phases(now, detail))
        if timeline.span:
            _spans().end(timeline.span, phases, now, detail)
        if metrics := _metrics():
            metrics.count(phases)


def within(run: str) -> AbstractContextManager[Any]:
    """A context whose spans belong to execution ``run``."""
    timeline, spans = _going.get(run), _spans()
    return spans.use(timeline.span) if spans and timeline and timeline.span else nullcontext()


def within_caller(header: Callable[[str], str | None]) -> AbstractContextManager[Any]:
    """A context whose spans join the trace named by a request's W3C headers. ``header`` looks a header up."""
    given = {name: value for name in ("traceparent", "tracestate") if (value := header(name)) is not None}
    return spans.use_caller(given) if given and (spans := _spans()) else nullcontext()


def trace_headers() -> dict[str, str]:
    """The W3C headers of the current trace; empty without a trace."""
    return spans.headers() if (spans := _spans()) else {}


def _spans() -> Any:
    """The spans module if the API is loaded, else False."""
    return "opentelemetry.trace" in sys.modules and import_module("casemate.telemetry.spans")


def _metrics() -> Any:
    """The metrics module if the API is loaded or a service loaded the module for Prometheus, else False."""
    own = "casemate.telemetry.metrics"
    return ("opentelemetry.metrics" in sys.modules or own in sys.modules) and import_module(own)


def _begin(run: str, namespace: str, intent: Detail, spans: Any) -> None:
    asked, turn = TURN.get() or (now := time.time_ns(), now)
    TURN.set(None)  # executions that the cell requests queue separately
    facts = {"run": run, "namespace": namespace, "kind": "step" if intent.get("session") else "run"}
    timeline = Timeline(asked, turn, facts | some_of(intent, "session", "language", "wall"))
    timeline.span = spans and spans.begin(timeline)
    if timeline.span or _metrics():
        _going[run] = timeline
