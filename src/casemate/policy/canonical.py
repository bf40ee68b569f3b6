"""Strict JSON from a cell, with one canonical form and its hash. Pure.

Displays, rules, hashes and actions all use the value that :func:`parse` returned; the original text is never read
again. The form is that of RFC 8785 (JCS), but integers of more than 53 bits keep all digits. Other numbers are finite
doubles.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from casemate.errors import InvalidArgument
from casemate.model.limits import format_size

if TYPE_CHECKING:
    from casemate.model.approval import Question

MOST_BYTES = 1 << 20  # of one JSON text: arguments of an approval request; more belongs in a file
MOST_DEPTH = 100
MOST_KEYS = 10_000
MOST_VALUES = 20_000  # keys and elements together; each costs the host about 60 bytes before a decision
_MOST_DIGITS = 400  # of one number; any honest spelling of a double is shorter
_SMALL = _MOST_DIGITS - 1  # characters of a text that needs only a rough count

# A string to its end (or to the end of the text), or one structural character. Possessive, so that the time is linear.
_STRUCTURE = re.compile(r'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)|[\[\]{},:]', re.DOTALL)
_LONG_NUMBER = re.compile(rf"[0-9]{{{_MOST_DIGITS}}}")


def parse(text: str | bytes, argument: str = "arguments") -> Any:
    """Parse one JSON text (RFC 8259) from a cell.

    Raises ``InvalidArgument`` for ``argument`` if it is not JSON, or if parsers disagree about it: a duplicate name in
    an object, NaN, Infinity, fractions beyond a double, lone surrogates. Also beyond 1 MiB, 100 levels, 10,000 keys or
    20,000 keys and elements; size and shape are checked before anything is built.
    """
    plain = _decode(text, argument)
    _check_shape(plain, argument)
    try:
        value = json.loads(
            plain,
            object_pairs_hook=lambda pairs: _object(pairs, argument),
            parse_float=lambda digits: _float(digits, argument),
            parse_constant=lambda word: _refuse(argument, f"{word} is not a JSON number"),
        )
    except InvalidArgument:
        raise
    except (ValueError, RecursionError) as error:
        _refuse(argument, f"is not JSON: {error}")
    if "\\u" in plain:
        canonical(value, argument)  # escapes can make lone surrogates, even in names
    return value


def canonical(value: Any, argument: str = "arguments") -> bytes:
    """Return the canonical JSON text of ``value`` (RFC 8785): sorted names, no spaces, one spelling of numbers and
    texts. Raises ``InvalidArgument`` for a value that JSON or this form cannot represent."""
    try:
        return _dump(dict(value) if isinstance(value, Mapping) else value)
    except (ValueError, RecursionError) as error:
        _refuse(argument, f"cannot be written as canonical JSON: {error}")


def _dump(value: Any) -> bytes:
    import rfc8785  # only where something is asked

    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        # No text in the value can contain the value's own hash.
        mark = hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()
        text = rfc8785.dumps(_mark_integers(value, mark))
        return re.sub(rb'"%s(-?[0-9]+)"' % mark.encode(), rb"\1", text)


def _mark_integers(value: Any, mark: str) -> Any:
    """Replace integers that RFC 8785 does not support by texts that begin with ``mark``."""
    if isinstance(value, int) and abs(value) >= 2**53:
        return f"{mark}{int(value)}"
    if isinstance(value, Mapping):
        return {name: _mark_integers(one, mark) for name, one in value.items()}
    return [_mark_integers(one, mark) for one in value] if isinstance(value, list | tuple) else value


def digest(value: Any, argument: str = "arguments") -> str:
    """Return the SHA-256 of the canonical JSON text in hexadecimal. Raises as :func:`canonical`."""
    return hashlib.sha256(canonical(value, argument)).hexdigest()


def fingerprint(question: Question, arguments: bytes | None = None) -> str:
    """Return the hash that an answer binds to: the digest of kind, server, tool, definition, arguments and any lists
    that the question is beyond, not of its caller. ``arguments`` is their canonical text, if known. Raises as
    :func:`canonical`."""
    first = canonical(question.arguments) if arguments is None else arguments
    if question.beyond:
        first += b',"beyond":' + canonical(list(question.beyond))
    rest = _canonical_names(question.kind, question.schema, question.server, question.tool)
    return hashlib.sha256(b'{"arguments":' + first + b"," + rest[1:]).hexdigest()


@lru_cache(maxsize=256)
def _canonical_names(kind: str, schema: str, server: str, tool: str) -> bytes:
    """The object without the arguments, whose name sorts first."""
    return canonical({"kind": kind, "schema": schema, "server": server, "tool": tool})


def _decode(text: str | bytes, argument: str) -> str:
    if len(text) > MOST_BYTES:
        _refuse(argument, f"are {format_size(len(text))} of JSON; the most is {format_size(MOST_BYTES)}")
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8")
        size = len(plain.encode("utf-8"))
    except UnicodeError as error:
        _refuse(argument, f"is not UTF-8: {error.reason if isinstance(error, UnicodeDecodeError) else 'surrogates'}")
    if size > MOST_BYTES:
        _refuse(argument, f"are {format_size(size)} of JSON; the most is {format_size(MOST_BYTES)}")
    return plain


def _check_shape(plain: str, argument: str) -> None:
    """Bound the value of ``plain`` before it is parsed."""
    if len(plain) <= _SMALL and sum(map(plain.count, "[{:,")) <= MOST_DEPTH:
        return  # even if some are inside texts, it is not deeper and has no longer number
    depth = keys = values = 0
    for found in _STRUCTURE.finditer(plain):
        match found[0]:
            case "[" | "{":
                depth, values = depth + 1, values + 1
            case "]" | "}":
                depth -= 1
            case ",":
                values += 1
            case ":":
                keys, values = keys + 1, values + 1
        if depth > MOST_DEPTH:
            _refuse(argument, f"is JSON of more than {MOST_DEPTH} levels")
        if keys > MOST_KEYS or values > MOST_VALUES:
            _refuse(argument, f"has more than {MOST_KEYS} keys, or {MOST_VALUES} keys and elements")
    if _LONG_NUMBER.search(plain) and _LONG_NUMBER.search(_STRUCTURE.sub(" ", plain)):
        _refuse(argument, f"has a number of more than {_MOST_DIGITS} digits")


def _object(pairs: list[tuple[str, Any]], argument: str) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _refuse(argument, f"has the name {twice[:80]!a} twice in one object")
    return made


def _float(digits: str, argument: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        _refuse(argument, f"has {digits[:40]}, which no double can hold")
    return number


def _refuse(argument: str, problem: str) -> NoReturn:
    raise InvalidArgument(argument, problem)
