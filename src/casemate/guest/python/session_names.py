"""The user's names: which a step bound or deleted, what they hold, and how to get and set them.

Nothing here runs the user's code. Of values that are not of a well-known type, only the type's name is reported.
"""

import keyword
import math
import sys

from _casemate.session_frames import FRAME_LIMIT  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[import-not-found,no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["UserNames", "__builtins__", "cut", "describe", "json_of"]

_MOST_NAMES, _LONGEST_NAME, _LONGEST_REPR, _LONGEST_KEY = 10_000, 200, 200, 50
_DEEPEST_REPR, _DEEPEST_JSON = 4, 200
_LARGEST_INT = 10_000  # bits; JSON readers do not accept more
_getsizeof = sys.getsizeof
_type_name, _type_qualname = type.__dict__["__name__"].__get__, type.__dict__["__qualname__"].__get__
_type_module = type.__dict__["__module__"].__get__
_function = type(lambda: None)
_builtin, _module = type(len), type(sys)
_BRACKETS: "dict[type, Any]" = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})")}
_SIZED = (int, float, bool, str, bytes, bytearray, list, dict, tuple, set, frozenset, complex, range, type(None))
# Stdlib types whose repr calls no code of the user.
_SAFE = {("builtins", "range"), ("builtins", "slice"), ("decimal", "Decimal"), ("datetime", "date"),
         ("datetime", "timedelta"), ("fractions", "Fraction"), ("uuid", "UUID"),
         ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}  # fmt: skip


class UserNames:
    """The user's part of a namespace. ``hidden`` has the names that IPython put there."""

    def __init__(self, namespace: "dict[str, Any]", hidden: "dict[str, Any]") -> None:
        self._namespace, self._hidden = namespace, hidden
        self._known = set(namespace)

    def changes(self) -> "tuple[list[str], list[str]]":
        """Return the names bound, and those deleted, since the last call."""
        now, before = set(self._namespace), self._known
        self._known = now
        new = [name for name in _last_of(self._namespace, now - before) if self._is_users(name)]
        gone = sorted(name for name in before - now if type(name) is str and not _is_ipythons(name))
        return _cut_names(new), _cut_names(gone)

    def variables(self) -> "list[dict[str, object]]":
        """List all variables, in order of definition."""
        variables = []
        for name in list(self._namespace):
            if name in self._namespace and self._is_users(name):
                value = self._namespace[name]
                variables.append({"name": cut(name, _LONGEST_NAME), **describe(value)})
                if len(variables) == _MOST_NAMES:
                    break
        return variables

    def get(self, name: str) -> object:
        """Return the value as JSON. Raises ``ValueError`` that says what JSON cannot hold, and where."""
        if name not in self._namespace:
            raise ValueError(f"there is no variable {name!r}")
        return json_of(self._namespace[name], name)

    def set(self, name: str, value: object) -> None:
        """Bind a name. Raises ``ValueError`` for an invalid name."""
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{cut(name, _LONGEST_NAME)!r} cannot be a name in Python")
        self._namespace[name] = value
        self._known.add(name)

    def _is_users(self, name: object) -> bool:
        if type(name) is not str or _is_ipythons(name):
            return False
        return name not in self._hidden or self._namespace.get(name) is not self._hidden[name]


def _last_of(namespace: "dict[str, Any]", names: "set[str]") -> "list[str]":
    """Return ``names`` in order of definition. They are among the last that were bound."""
    found: "list[str]" = []
    if names:
        for name in reversed(namespace):
            if name in names:
                found.append(name)
                if len(found) == len(names):
                    break
    found.reverse()
    return found


def _cut_names(names: "list[str]") -> "list[str]":
    return [cut(name, _LONGEST_NAME) for name in names[:_MOST_NAMES]]


def _is_ipythons(name: str) -> bool:
    """Whether the name has the form of an IPython name: ``_``, ``_i3``, ``_7``, ``__name__``."""
    if not name.startswith("_"):
        return name in ("In", "Out")
    rest = name[1:]
    return (
        rest in ("", "_", "__", "i", "ii", "iii", "ih", "oh", "dh", "exit_code")
        or rest.isdecimal()
        or (rest[0] == "i" and rest[1:].isdecimal())
        or (name.startswith("__") and name.endswith("__"))
    )


def cut(text: str, most: int) -> str:
    """Return ``text``, cut to ``most`` characters. The ellipsis tells the host to hide a partial secret there."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def describe(value: object) -> "dict[str, object]":
    """Return the type, size and a short text of ``value``."""
    kind = type(value)
    return {"type": cut(_name_of(kind), _LONGEST_REPR), "size": _size_of(value), "repr": _repr_of(value)}


def _repr_of(value: object) -> str:
    try:
        text = _brief(value, 0)
    except Exception:  # a thread changes it meanwhile
        text = f"<{_name_of(type(value))} object>"
    return cut(text, _LONGEST_REPR)


def _name_of(kind: type) -> str:
    module = _type_module(kind)
    name: str = _type_qualname(kind)
    return name if module == "builtins" or type(module) is not str else f"{module}.{name}"


def _size_of(value: object) -> "int | None":
    if type(value) in _SIZED:
        return _getsizeof(value)
    if _is_from("numpy", "ndarray", value):
        size: int = value.nbytes  # type: ignore[attr-defined]
        return size
    return None


def _brief(value: "Any", depth: int) -> str:
    """Return the repr or its beginning. A value of another type gets a description."""
    kind = type(value)
    if kind is int:
        return repr(value) if value.bit_length() < _LARGEST_INT else f"<int of {value.bit_length()} bits>"
    if value is None or value is Ellipsis or kind in (bool, float, complex):
        return repr(value)
    if kind in (str, bytes, bytearray):
        return repr(value[:_LONGEST_REPR])
    if kind in _BRACKETS or kind is dict:
        return _brief_container(value, kind, depth)
    return _brief_object(value, kind)


def _brief_container(value: "Any", kind: type, depth: int) -> str:
    if not value:
        return repr(value)
    opening, closing = "{}" if kind is dict else _BRACKETS[kind]
    if depth >= _DEEPEST_REPR:
        return f"{opening}…{closing}"
    pieces: "list[str]" = []
    budget = _LONGEST_REPR
    for item in value.items() if kind is dict else value:
        if budget <= 0:
            pieces.append("…")
            break
        parts = item if kind is dict else (item,)
        piece = ": ".join([_brief(part, depth + 1) for part in parts])
        pieces.append(piece)
        budget -= len(piece) + 2
    comma = "," if kind is tuple and len(value) == 1 else ""
    return f"{opening}{', '.join(pieces)}{comma}{closing}"


def _brief_object(value: "Any", kind: type) -> str:
    if kind is _function or kind is _builtin:
        name = value.__qualname__
        return f"<function {name}>" if type(name) is str else "<function>"
    if kind is _module:
        name = vars(value).get("__name__")
        return f"<module {name}>" if type(name) is str else "<module>"
    if issubclass(kind, type):
        return f"<class {_name_of(value)}>"
    if (_type_module(kind), _type_name(kind)) in _SAFE and _is_genuine(kind):
        return repr(value)
    return _brief_data(value, kind)


def _brief_data(value: "Any", kind: type) -> str:
    """Describe arrays and tables by their shape."""
    if _is_from("numpy", "ndarray", value):
        return f"ndarray {value.dtype.name} {'x'.join(map(str, value.shape)) or 'scalar'}"
    if _is_numpy_scalar(kind):
        return repr(value)
    if _is_from("pandas", "DataFrame", value):
        return f"DataFrame {value.shape[0]}x{value.shape[1]}"
    if _is_from("pandas", "Series", value):
        return f"Series {len(value.array)}"
    return f"<{_name_of(kind)} object>"


def _is_from(module: str, name: str, value: object) -> bool:
    """Whether the value is of exactly that class. Imports nothing."""
    return type(value) is vars(sys.modules.get(module, _EMPTY)).get(name, _EMPTY)


def _is_genuine(kind: type) -> bool:
    """Whether a class that claims to be in the stdlib really is."""
    module = _type_module(kind)
    return vars(sys.modules.get(module, _EMPTY)).get(_type_name(kind)) is kind


_EMPTY = _module("empty")


def _is_numpy_scalar(kind: type) -> bool:
    """Whether it is numpy's type of a number, a bool, a date or a text."""
    known: "dict[str, Any]" = vars(sys.modules.get("numpy", _EMPTY))
    generic = known.get("generic")
    return (
        generic is not None
        and issubclass(kind, generic)
        and known.get(_type_name(kind)) is kind
        and not issubclass(kind, (known["void"], known["object_"]))
    )


def json_of(value: "Any", path: str, depth: int = 0, budget: "list[int] | None" = None) -> object:
    """Convert the value to JSON's types. Raises ``ValueError`` that names what cannot be converted, and its place."""
    budget = [FRAME_LIMIT] if budget is None else budget
    _take(budget, 2, path)
    if depth > _DEEPEST_JSON:
        raise ValueError(f"{path[:_LONGEST_REPR]}… is nested deeper than {_DEEPEST_JSON} levels")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if _is_numpy_scalar(kind):
        value = value.item()
    if isinstance(value, str):
        return _json_text(str.__str__(value), path, budget)
    if isinstance(value, int):
        return _json_int(int.__int__(value), path)
    if isinstance(value, float):
        return _json_float(float.__float__(value), path)
    if isinstance(value, (list, tuple)):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [json_of(item, f"{path}[{index}]", depth + 1, budget) for index, item in enumerate(items)]
    if isinstance(value, dict):
        return _json_dict(value, path, depth, budget)
    raise ValueError(f"{path} is of type {_name_of(kind)}, which JSON does not have")


def _json_dict(value: "dict[Any, Any]", path: str, depth: int, budget: "list[int]") -> object:
    result = {}
    for key, item in dict.items(value):
        if not isinstance(key, str):
            raise ValueError(f"{path} has a key of type {_name_of(type(key))}; keys in JSON are texts")
        text = str.__str__(key)
        result[_json_text(text, f"a key of {path}", budget)] = json_of(
            item, f"{path}[{cut(text, _LONGEST_KEY)!r}]", depth + 1, budget
        )
    return result


def _json_text(text: str, path: str, budget: "list[int]") -> str:
    _take(budget, len(text), path)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{path} is not valid Unicode text (it has half a surrogate pair)") from None
    return text


def _json_int(number: int, path: str) -> int:
    if number.bit_length() > _LARGEST_INT:
        raise ValueError(f"{path} is an integer of {number.bit_length()} bits, more than JSON readers take")
    return number


def _json_float(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{path} is {number!r}, which JSON does not have")
    return number


def _take(budget: "list[int]", size: int, path: str) -> None:
    budget[0] -= size
    if budget[0] < 0:
        raise ValueError(f"{path.partition('[')[0]} is larger than {FRAME_LIMIT} bytes")
