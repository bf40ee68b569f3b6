"""Whether a value is what a tool's schema says: the authority on the host, whatever code in a cell has checked.

jsonschema-rs does it, with a retriever that refuses everything, and with expressions whose backtracking is bounded:
Python's own engine would hang on a pattern like ``^(a+)+$``, and it cannot be interrupted. What would take too long is
refused before it begins (`casemate.tools.schemas.cost`).
"""

from __future__ import annotations

from typing import Any

from casemate.tools.schemas.cost import DEEPEST_VALUE, Looks
from casemate.tools.schemas.schema import Document, Unreadable, read
from casemate.tools.tool import Json

MOST_LOOKS = 20_000_000  # at parts of a value: some seconds
MOST_ERRORS = 5
_QUICK = 10_000  # looks
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
    """One schema, compiled once; may be used from any thread. ``document``: the same schema, where it was read already.

    Raises :class:`Unreadable` for a schema that cannot be used: too large, malformed, with references elsewhere,
    patterns that are none, or that nobody could check in bounded time.
    """

    def __init__(self, schema: Json, document: Document | None = None) -> None:
        self._looks = Looks(document or read(schema))
        self._compiled = _compiled(schema)

    def is_quick(self, value: Json) -> bool:
        """Whether checking ``value`` takes less than a millisecond or so."""
        parts, depth = _extent(value)
        return depth <= DEEPEST_VALUE and parts * self._looks.at(depth) <= _QUICK

    def errors(self, value: Json) -> tuple[str, ...]:
        """What is wrong with ``value``: none for a valid one, else at most `MOST_ERRORS` short texts.

        A value that would take too long to check counts as wrong.
        """
        parts, depth = _extent(value)
        if depth > DEEPEST_VALUE:
            return (f"it is nested more than {DEEPEST_VALUE} deep",)
        if parts * self._looks.at(depth) > MOST_LOOKS:
            return ("it is too large to be checked against a schema as complex as this one",)
        found: list[str] = []
        try:
            for error in self._compiled.iter_errors(value):
                found.append(_told(error.instance_path, error.message))
                if len(found) == MOST_ERRORS:
                    break
        except (ValueError, TypeError, OverflowError) as error:
            return (_told([], f"it cannot be checked: {error}"),)
        return tuple(found)


def _compiled(schema: Json) -> Any:
    import jsonschema_rs

    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    name = _DIALECTS.get(dialect.rstrip("#"), "") if isinstance(dialect, str) else ""
    if isinstance(schema, dict):
        # The dialect is chosen here: an unknown one would be looked for at its address.
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
        raise Unreadable("not_a_schema", _told([], str(error))) from None


def _refuse(uri: str) -> Json:
    raise ValueError(f"nothing is fetched for a schema, and so not {uri}")


def _extent(value: Json) -> tuple[int, int]:
    """How many parts ``value`` has, and how deep it is nested (looked at no further than matters)."""
    parts, deepest = 0, 0
    stack = [(value, 0)]
    while stack and deepest <= DEEPEST_VALUE:
        part, depth = stack.pop()
        parts += 1
        deepest = max(deepest, depth)
        if isinstance(part, dict):
            parts += len(part)
            stack.extend((item, depth + 1) for item in part.values())
        elif isinstance(part, list):
            stack.extend((item, depth + 1) for item in part)
    return parts, deepest


def _told(path: list[str | int], message: str) -> str:
    """``items[2].name: what is wrong``, on one line and short."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    line = " ".join(f"{place}: {message}".split() if place else message.split())
    shown = line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR // 2]} ... {line[-_LONGEST_ERROR // 2 :]}"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown)
