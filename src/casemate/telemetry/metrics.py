"""The metrics of executions, for OpenTelemetry and Prometheus. No label value is chosen by a caller.

An execution is counted when it ends. This module is loaded only if metrics are wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from casemate.telemetry import SANDBOXES
from casemate.telemetry.timeline import Phase
from casemate.version import __version__


class _Instrument(NamedTuple):
    """A gauge is named after a figure of ``stats``. A duration's name begins with the name of its phase."""

    text: str
    labels: tuple[str, ...] = ()
    kind: Literal["histogram", "counter", "gauge"] = "histogram"
    unit: str = "s"


_INSTRUMENTS = {
    "execution.duration": _Instrument("Runs and steps, once their cell is there", ("kind", "language", "status")),
    "queue.duration": _Instrument("Until an execution had its turn"),
    "start.duration": _Instrument("From the turn to a cell that runs", ("language", "start", "wall")),
    "collection.duration": _Instrument("Taking files, redaction, and the outcome's row"),
    "approval.duration": _Instrument("From a question to its answer", ("kind", "decision")),
    "tool.duration": _Instrument("Calls of tools", ("outcome",)),
    "limits": _Instrument("Executions that a limit ended", ("cause",), "counter", ""),
    "refusals": _Instrument("What was not allowed to cross, executions without room", ("kind",), "counter", ""),
    "egress": _Instrument("What went through the egress proxy", ("direction",), "counter", "By"),
    "running": _Instrument("Runs and steps that go on", (), "gauge", ""),
    "waiting": _Instrument("Runs and steps that wait for a turn", (), "gauge", ""),
    "approvals": _Instrument("Questions without an answer", (), "gauge", ""),
    "sessions": _Instrument("Open sessions", (), "gauge", ""),
    "cells.running": _Instrument("Cells with a program", (), "gauge", ""),
    "cells.ready": _Instrument("Cells that wait for a program", (), "gauge", ""),
    "cells.memory": _Instrument("What all cells use", (), "gauge", "By"),
}
_UNITS = {"s": "_seconds", "By": "_bytes"}  # Prometheus' suffixes of names
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_sinks: dict[str, Mapping[str, Callable[..., None]]] = {}


def count(phases: Iterable[Phase]) -> None:
    """Record the metrics of an ended execution from its phases."""
    for name, start, stop, facts, error in phases:
        if f"{name}.duration" in _INSTRUMENTS:
            record(f"{name}.duration", max(0, stop - start) / 1e9, facts)
        cause = facts.get("cause", "")
        if name == "execution" and (cause == "timeout" or cause.endswith("_limit")):
            record("limits", 1, facts)
        elif name == "egress":
            record("egress", facts["bytes_out"], {"direction": "out"})
            record("egress", facts["bytes_in"], {"direction": "in"})
            if error == "denied":
                record("refusals", facts["connections"], {"kind": "egress"})
        elif name in ("approval", "decision") and facts["decision"] != "allowed" and facts["kind"] != "egress":
            record("refusals", 1, facts)


def record(name: str, value: float, facts: Mapping[str, Any]) -> None:
    """Record one value. The instrument's labels come from ``facts``; other facts are ignored."""
    if "opentelemetry.metrics" in sys.modules:
        _open_telemetry()
    labels = {label: str(facts.get(label, "")) for label in _INSTRUMENTS[name].labels}
    for sink in tuple(_sinks.values()):
        sink[name](value, labels)


def _level(name: str) -> float:
    return float(sum(attrgetter(name)(one._count()) or 0 for one in tuple(SANDBOXES)))


@cache
def _open_telemetry() -> None:
    from opentelemetry.metrics import CallbackOptions, Observation, get_meter

    def observe(name: str, _options: CallbackOptions) -> Iterator[Observation]:
        yield Observation(_level(name))

    meter, sink = get_meter("casemate", __version__), {}
    for name, (text, _, kind, unit) in _INSTRUMENTS.items():
        if kind == "gauge":
            meter.create_observable_gauge(f"casemate.{name}", [partial(observe, name)], unit, text)
        elif kind == "counter":
            sink[name] = meter.create_counter(f"casemate.{name}", unit, text).add
        else:
            sink[name] = meter.create_histogram(
                f"casemate.{name}", unit, text, explicit_bucket_boundaries_advisory=_BUCKETS
            ).record
    _sinks["opentelemetry"] = sink


@cache
def prometheus() -> Callable[[], bytes] | None:
    """Start to record for Prometheus. Returns a function that writes its text, or None without its library."""
    try:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    except ImportError:
        return None
    registry, sink = CollectorRegistry(), {}
    for name, (text, labels, kind, unit) in _INSTRUMENTS.items():
        plain = f"casemate_{name.replace('.', '_')}{_UNITS.get(unit, '')}"
        if kind == "gauge":
            Gauge(plain, text, registry=registry).set_function(partial(_level, name))
        elif kind == "counter":
            counter = Counter(plain, text, labels, registry=registry)
            sink[name] = lambda value, given, of=counter: of.labels(**given).inc(value)
        else:
            histogram = Histogram(plain, text, labels, registry=registry, buckets=_BUCKETS)
            sink[name] = lambda value, given, of=histogram: (of.labels(**given) if given else of).observe(value)
    _sinks["prometheus"] = sink
    return partial(generate_latest, registry)
