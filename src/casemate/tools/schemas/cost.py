"""How often a validator may look at one value, told from the schema alone, before anything is validated. Pure.

A few lines of JSON Schema can ask for 2**40 looks: definitions that refer twice to the next one (a bomb), or a
recursive definition that looks at its child twice. A validator follows them all and cannot be interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from casemate.tools.schemas.schema import Document, Unreadable
from casemate.tools.tool import Json

DEEPEST_VALUE = 64  # arguments and results nested deeper are refused before they are validated
MOST_IN_PLACE = 20_000  # looks at one value by schemas that apply to the same value
_IN_PLACE = ("else", "if", "not", "then")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_OF_EVERY_CHILD = (
    "additionalItems", "additionalProperties", "contains", "items", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


class Looks:
    """How often any one part of a value is looked at, at most, for values nested so and so deep.

    Raises :class:`Unreadable` where the schema applies to a value without end (a reference to itself), or too often.
    """

    def __init__(self, document: Document) -> None:
        order = _in_order(document)  # what a node needs comes before it
        numbers = {id(node): n for n, node in enumerate(order)}

        def known(schemas: Iterable[Json]) -> list[int]:
            return [numbers.get(id(schema), -1) for schema in schemas]

        self._same = [known(_in_place(document, node)) for node in order]
        self._one_of = [known(_for_one_child(node)) for node in order]
        self._all_of = [known(_for_every_child(node)) for node in order]
        self._root = numbers.get(id(document.root), -1)
        self._now: list[float] = []
        self._step(None)
        if max(self._now[:-1], default=1.0) > MOST_IN_PLACE:
            raise Unreadable("too_complex", f"the schema looks at one value more than {MOST_IN_PLACE} times")
        self._table = [self._now[self._root]]

    def at(self, depth: int) -> float:
        """For values nested ``depth`` deep."""
        while len(self._table) <= depth:
            self._step(self._now)
            self._table.append(self._now[self._root])
        return self._table[depth]

    def _step(self, before: list[float] | None) -> None:
        """Each node's looks at one level more; the last number is that of ``true``, ``false`` and what has no parts."""
        now = [1.0] * (len(self._same) + 1)
        for n, same in enumerate(self._same):
            total = 1.0 + sum(now[child] for child in same)
            if before is not None:
                total += max((before[child] for child in self._one_of[n]), default=0.0)
                total += sum(before[child] for child in self._all_of[n])
            now[n] = min(total, 1e18)
        self._now = now


def _for_one_child(node: Mapping[str, Any]) -> list[Json]:
    """Schemas of which one at most looks at the same child of a value."""
    items = node.get("items")
    return [*_values(node, "properties"), *_lists(node, ("prefixItems",)), *(items if isinstance(items, list) else ())]


def _for_every_child(node: Mapping[str, Any]) -> list[Json]:
    """Schemas that may all look at the same child of a value."""
    return [
        *_values(node, "patternProperties"),
        *(node[key] for key in _OF_EVERY_CHILD if isinstance(node.get(key), dict)),
    ]


def _in_place(document: Document, node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that look at the same value as ``node``."""
    found = [*document.referred(node), *(node.get(key) for key in _IN_PLACE), *_lists(node, _IN_PLACE_LISTS)]
    found += [*_values(node, "dependentSchemas"), *_values(node, "dependencies")]
    return (schema for schema in found if isinstance(schema, dict))


def _values(node: Mapping[str, Any], key: str) -> list[Json]:
    value = node.get(key)
    return list(value.values()) if isinstance(value, dict) else []


def _lists(node: Mapping[str, Any], keys: tuple[str, ...]) -> list[Json]:
    return [item for key in keys if isinstance(node.get(key), list) for item in node[key]]


def _in_order(document: Document) -> list[dict[str, Any]]:
    """Every node, after those that it applies to the same value. Raises :class:`Unreadable` for a circle of these."""
    order: list[dict[str, Any]] = []
    state: dict[int, int] = {}  # 1: begun, 2: in the order
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
