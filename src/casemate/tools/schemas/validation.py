"""Validates values against a tool's schema, on the host. Checks by code in a cell do not count.

It uses jsonschema-rs with a retriever that refuses everything and with bounded backtracking: Python's ``re`` would hang
on a pattern like ``^(a+)+$``, and it cannot be interrupted. A validation that would take too long is refused before it
starts, by a bound on the cost that is computed from the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from casemate.tools.schemas.schema import Document, Unreadable, list_of, mapping_of, read
from casemate.tools.tool import Json, parts_of
from casemate.visible import plain

DEEPEST_VALUE = 64  # values nested deeper are refused before they are validated
MOST_IN_PLACE = 20_000  # visits of one value by schemas that apply to the same value
_IN_PLACE = ("else", "if", "not", "then")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_OF_EVERY_CHILD = (
    "additionalItems", "additionalProperties", "contains", "items", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


class Looks:
    """The largest number of visits of any part of a value, by the value's depth. Raises :class:`Unreadable` if the
    schema applies to a value endlessly (it refers to itself) or too often."""

    def __init__(self, document: Document) -> None:
        order = _in_order(document)
        numbers = {id(node): n for n, node in enumerate(order)}

        def numbers_of(schemas: Iterable[Json]) -> list[int]:
            return [numbers.get(id(schema), -1) for schema in schemas]

        self._same = [numbers_of(_in_place(document, node)) for node in order]
        self._one_of = [numbers_of(_for_one_child(node)) for node in order]
        self._all_of = [numbers_of(_for_every_child(node)) for node in order]
        self._root = numbers.get(id(document.root), -1)
        self._now: list[float] = []
        self._step(None)
        if max(self._now[:-1], default=1.0) > MOST_IN_PLACE:
            raise Unreadable("too_complex", f"the schema visits one value more than {MOST_IN_PLACE} times")
        self._table = [self._now[self._root]]

    def at(self, depth: int) -> float:
        """The number for values nested ``depth`` deep."""
        while len(self._table) <= depth:
            self._step(self._now)
            self._table.append(self._now[self._root])
        return self._table[depth]

    def _step(self, before: list[float] | None) -> None:
        """Compute each node's visits for one more level; the last number is for ``true`` and ``false``."""
        now = [1.0] * (len(self._same) + 1)
        for n, same in enumerate(self._same):
            total = 1.0 + sum(now[child] for child in same)
            if before is not None:
                total += max((before[child] for child in self._one_of[n]), default=0.0)
                total += sum(before[child] for child in self._all_of[n])
            now[n] = min(total, 1e18)
        self._now = now


def _for_one_child(node: Mapping[str, Any]) -> list[Json]:
    """Schemas for children of a value. At most one applies to the same child."""
    return [*mapping_of(node, "properties").values(), *list_of(node, "prefixItems"), *list_of(node, "items")]


def _for_every_child(node: Mapping[str, Any]) -> list[Json]:
    """Schemas that may all apply to the same child of a value."""
    return [
        *mapping_of(node, "patternProperties").values(),
        *(node[key] for key in _OF_EVERY_CHILD if isinstance(node.get(key), dict)),
    ]


def _in_place(document: Document, node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that apply to the same value as ``node``."""
    found = [*document.targets_of(node), *(node.get(key) for key in _IN_PLACE)]
    found += [item for key in _IN_PLACE_LISTS for item in list_of(node, key)]
    found += [*mapping_of(node, "dependentSchemas").values(), *mapping_of(node, "dependencies").values()]
    return (schema for schema in found if isinstance(schema, dict))


def _in_order(document: Document) -> list[dict[str, Any]]:
    """All nodes, each after those that it applies to the same value. Raises :class:`Unreadable` for a cycle."""
    order: list[dict[str, Any]] = []
    state: dict[int, int] = {}  # 1: in progress, 2: in the order
    for start in document.nodes.values():
        stack = [(start, _in_place(document, start))] if id(start) not in state else []
        state.setdefault(id(start), 1)
        while stack:
            node, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                state[id(node)] = 2
                order.append(node)
                stack.pop()
            elif state.get(id(child)) == 1:
                raise Unreadable("endless", "the schema refers to itself without end")
            elif id(child) not in state:
                state[id(child)] = 1
                stack.append((child, _in_place(document, child)))
    return order


MOST_LOOKS = 20_000_000  # visits of parts of a value: some seconds
MOST_ERRORS = 5
_QUICK = 10_000  # visits
_LONGEST_ERROR = 300
_BACKTRACKING = 100_000  # steps for one pattern on one text
_PATTERN_SIZE = 2**20  # bytes, compiled
_DIALECTS = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
}


class Validator:
    """A compiled schema. Thread-safe. Raises :class:`Unreadable` for a malformed, too large or too complex schema, and
    for external references. ``document``: the same schema if it was read already."""

    def __init__(self, schema: Json, document: Document | None = None) -> None:
        self._looks = Looks(document or read(schema))
        self._compile = _compile(schema)

    def is_quick(self, value: Json) -> bool:
        """Whether validating ``value`` takes less than about a millisecond."""
        parts, depth = _extent(value)
        return depth <= DEEPEST_VALUE and parts * self._looks.at(depth) <= _QUICK

    def errors(self, value: Json) -> tuple[str, ...]:
        """At most `MOST_ERRORS` short texts. A value that would take too long to validate is an error."""
        parts, depth = _extent(value)
        if depth > DEEPEST_VALUE:
            return (f"it is nested more than {DEEPEST_VALUE} deep",)
        if parts * self._looks.at(depth) > MOST_LOOKS:
            return ("it is too large to be checked against a schema as complex as this one",)
        found: list[str] = []
        try:
            for error in self._compile.iter_errors(value):
                found.append(_describe_error(error.instance_path, error.message))
                if len(found) == MOST_ERRORS:
                    break
        except (ValueError, TypeError, OverflowError) as error:
            return (_describe_error([], f"it cannot be checked: {error}"),)
        return tuple(found)


def _compile(schema: Json) -> Any:
    import jsonschema_rs

    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    name = _DIALECTS.get(dialect.rstrip("#"), "") if isinstance(dialect, str) else ""
    if isinstance(schema, dict):
        # The dialect is chosen here. The library would look up an unknown one at its address.
        schema = {key: value for key, value in schema.items() if key not in ("$schema", "$id", "id")}
    make = getattr(jsonschema_rs, name or "Draft202012Validator")
    try:
        return make(
            schema,
            retriever=_refuse,
            validate_formats=False,
            pattern_options=jsonschema_rs.FancyRegexOptions(
                backtrack_limit=_BACKTRACKING, size_limit=_PATTERN_SIZE, dfa_size_limit=_PATTERN_SIZE
            ),
        )
    except (ValueError, TypeError, OverflowError, jsonschema_rs.ReferencingError) as error:
        raise Unreadable("not_a_schema", _describe_error([], str(error))) from None


def _refuse(uri: str) -> Json:
    raise ValueError(f"schemas may not refer to other documents, so {uri} is not fetched")


def _extent(value: Json) -> tuple[int, int]:
    """The number of parts of ``value`` and its depth. Stops at `DEEPEST_VALUE`."""
    parts = deepest = 0
    for part, depth in parts_of(value):
        parts += 1 + (len(part) if isinstance(part, dict) else 0)
        deepest = max(deepest, depth)
        if deepest > DEEPEST_VALUE:
            break
    return parts, deepest


def _describe_error(path: list[str | int], message: str) -> str:
    """``items[2].name: what is wrong``, on one line and short."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    line = " ".join(f"{place}: {message}".split() if place else message.split())
    shown = line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR // 2]} ... {line[-_LONGEST_ERROR // 2 :]}"
    return plain(shown)
