"""Where rows of the record come in, as they are written, and where traces come in and go out.

Nothing here loads OpenTelemetry: an application that has configured an SDK has loaded its API. Where nobody has, a row
costs a look into a dictionary.
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

_MOST_ROWS = 1000  # of one execution that are told; a program may call tools without end

TURN: ContextVar[tuple[int, int] | None] = ContextVar("turn", default=None)
"""When what is done here asked for its turn, and when it had it, in nanoseconds of Unix time."""

_going: dict[str, Timeline] = {}


def observe(kind: str, run: str, namespace: str, detail: Detail) -> None:
    """A row was written: an intent in the context of whoever asked for the execution, others anywhere."""
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
    """What is done meanwhile is part of that execution."""
    timeline, spans = _going.get(run), _spans()
    return spans.use(timeline.span) if spans and timeline and timeline.span else nullcontext()


def within_caller(header: Callable[[str], str | None]) -> AbstractContextManager[Any]:
    """What is begun meanwhile is part of the trace that a request's W3C headers name; ``header`` gives one of them."""
    given = {name: value for name in ("traceparent", "tracestate") if (value := header(name)) is not None}
    return spans.use_caller(given) if given and (spans := _spans()) else nullcontext()


def trace_headers() -> dict[str, str]:
    """The W3C headers that name the trace of what is done here; none where there is none."""
    return spans.headers() if (spans := _spans()) else {}


def _spans() -> Any:
    """The module, where the API is loaded."""
    return "opentelemetry.trace" in sys.modules and import_module("casemate.telemetry.spans")


def _metrics() -> Any:
    """The module, where the API is loaded, or a service has loaded it for Prometheus."""
    own = "casemate.telemetry.metrics"
    return ("opentelemetry.metrics" in sys.modules or own in sys.modules) and import_module(own)


def _begin(run: str, namespace: str, intent: Detail, spans: Any) -> None:
    asked, turn = TURN.get() or (now := time.time_ns(), now)
    TURN.set(None)  # what its cell asks for has turns of its own
    facts = {"run": run, "namespace": namespace, "kind": "step" if intent.get("session") else "run"}
    timeline = Timeline(asked, turn, facts | some_of(intent, "session", "language", "wall"))
    timeline.span = spans and spans.begin(timeline)
    if timeline.span or _metrics():
        _going[run] = timeline
