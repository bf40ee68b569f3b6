"""Spans as tests look at them."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def named(spans: Iterable[ReadableSpan], name: str) -> ReadableSpan:
    """The only one with this name."""
    found = [one for one in spans if one.name == name]
    assert len(found) == 1, [one.name for one in spans]
    return found[0]


def within(spans: Iterable[ReadableSpan], parent: ReadableSpan) -> list[ReadableSpan]:
    """Those right below ``parent``, in the order in which they begin."""
    below = [one for one in spans if one.parent is not None and one.parent.span_id == context_of(parent).span_id]
    return sorted(below, key=lambda one: one.start_time or 0)


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
