"""How much one execution may use: each limit defined once, with its bounds, its default and what it means.

Annotations here are evaluated at import, for ``model.options`` reads them: no ``from __future__ import annotations``.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Unpack, get_args

from casemate.errors import InvalidArgument
from casemate.model.call_options import USUAL_SECONDS
from casemate.model.foreign import ARGUMENTS
from casemate.model.operation import Between
from casemate.model.options import Default, complete, defaults_of, find_marker, takes_options

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(text: str | int) -> int:
    """The number of bytes that ``text`` means: ``"512MiB"``, ``"64k"``, ``"1.5 GB"`` or ``4096``.

    ``k``, ``m``, ``g`` and ``t`` alone are powers of 1024, as in Docker. Raises ``ValueError``.
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"{text!r} is not a size; write a number of bytes or e.g. '512MiB'")
    if isinstance(text, int):
        return text
    compact = text.strip().lower().replace(" ", "").replace("_", "")
    digits = compact.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = compact[len(digits) :]
    try:
        return int(float(digits) * _FACTORS[unit]) if "." in digits else int(digits) * _FACTORS[unit]
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"{text!r} is not a size; write a number of bytes or e.g. '512MiB'") from None


def format_size(size: int) -> str:
    """``size`` bytes for people, exact where it can be: ``536870912`` is ``512 MiB``."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{value:.4g} {unit}"


def held_by(*values: object) -> int:
    """Bytes of memory that JSON values take together, each object once; what other objects hold is not counted."""
    seen: set[int] = set()
    waiting, size = list(values), 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        if isinstance(one, Mapping):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return size


_MIB = 2**20
_SECONDS = Between(0.01, 7 * 86400.0)
_OF_OUTPUT = "of output"  # in the annotation of a limit that the host enforces on what comes out of a cell


class LimitOptions(TypedDict, total=False):
    """The limits by their names. What lies outside the bounds is a mistake, not a wish."""

    memory: Annotated[str | int, Between(16 * _MIB, 2**44), Default("512MiB")]
    """All memory of a run or session together, in bytes, or as text such as `"512MiB"`."""
    cpus: Annotated[float, Between(0.01, 4096.0), Default(1.0)]
    """Cores that it uses at once."""
    cpu_time: Annotated[float | None, _SECONDS, Default(None)]
    """Seconds of cpu; none for no limit of its own."""
    processes: Annotated[int, Between(1, 32768), Default(64)]
    """Processes and threads at once."""
    wall: Annotated[float, _SECONDS, Default(USUAL_SECONDS)]
    """The most seconds that a run or a step may take."""
    output: Annotated[str | int, Between(256, 2**30), Default("1MiB"), _OF_OUTPUT]
    """Bytes, or text such as `"1MiB"`, that are returned of each of stdout and stderr."""
    full_output: Annotated[str | int, Between(256, 2**36), Default("64MiB"), _OF_OUTPUT]
    """Bytes that a program may write to both before it is ended; a file keeps them."""
    disk: Annotated[str | int, Between(2**16, 2**42), Default("256MiB")]
    """Bytes that are written in /workspace, /tmp and /dev/shm together."""
    inodes: Annotated[int, Between(32, 10**8), Default(20000)]
    """Files and folders made there."""
    open_files: Annotated[int, Between(16, 2**20), Default(1024)]
    """Open files of each process; at most the application's hard limit less 512, or half of it where that is more."""


class LimitBounds(NamedTuple):
    """What a limit may be: ``form`` of its values, and the least and the most of them."""

    form: Literal["size", "whole", "number", "seconds"]
    low: float
    high: float


def _bounds_of(annotation: Any) -> LimitBounds:
    bounds = find_marker(annotation, Between)
    forms: dict[Any, Any] = {str | int | None: "size", int | None: "whole", float | None: "number"}
    return LimitBounds("seconds" if bounds is _SECONDS else forms[annotation.__origin__ | None], *bounds)


LIMIT_BOUNDS: Mapping[str, LimitBounds] = {
    name: _bounds_of(annotation) for name, annotation in LimitOptions.__annotations__.items()
}
OUTPUT_LIMITS = tuple(name for name, one in LimitOptions.__annotations__.items() if _OF_OUTPUT in get_args(one))
COMMAND_LIMITS = tuple(name for name in LIMIT_BOUNDS if name not in ("wall", *OUTPUT_LIMITS))  # of `wrap`
ARGUMENTS.update({name: f"limits=Limits({name}=...)" for name in LIMIT_BOUNDS})


class _Given:
    """Which limits a caller gave. It is no field: limits with the same values are equal."""

    __slots__ = ("given",)
    given: frozenset[str]


@dataclass(frozen=True, slots=True, init=False)
class Limits(_Given):
    """How much one execution may use.

    The arguments are those of :class:`casemate.model.limits.LimitOptions`. Every field is a plain number. A limit that
    you do not give has its default, and narrows nothing.

    Raises:
        InvalidArgument: It names the field.
    """

    memory: int
    cpus: float
    cpu_time: float | None
    processes: int
    wall: float
    output: int
    full_output: int
    disk: int
    inodes: int
    open_files: int

    @takes_options(LimitOptions)
    def __init__(self, **limits: Unpack[LimitOptions]) -> None:
        object.__setattr__(self, "given", frozenset(limits))
        for name, value in complete(LimitOptions, limits, "Limits").items():
            object.__setattr__(self, name, _check_value(name, value))

    def __reduce__(self) -> "tuple[partial[Limits], tuple[()]]":
        """Copies and pickles know what was given, too."""
        return partial(Limits, **{name: getattr(self, name) for name in self.given}), ()

    def narrowed(self, other: "Limits | None") -> "Limits":
        """These limits with every limit that ``other`` was given and that is tighter; never a wider one."""
        if other is None:
            return self
        narrow: dict[str, Any] = {name: getattr(self, name) for name in self.given}
        for name in other.given:
            values = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            narrow[name] = min(values, default=None)
        return Limits(**narrow)


def _check_value(name: str, value: Any) -> int | float | None:
    form, low, high = LIMIT_BOUNDS[name]
    if value is None and defaults_of(LimitOptions)[name] is None:
        return None
    if form == "size":
        return _size(name, value, int(low), int(high))
    is_number = isinstance(value, int if form == "whole" else int | float) and not isinstance(value, bool)
    if form == "whole":
        if not is_number or not low <= value <= high:
            raise InvalidArgument(f"limits.{name}", f"{value!r} is not a whole number from {low} to {high}")
        return int(value)
    if not is_number or value != value or not low <= value <= high:  # NaN is not equal to itself
        shown = repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "a much larger one"
        raise InvalidArgument(f"limits.{name}", f"{shown} is not a number from {low:g} to {high:g}")
    return float(value)


def _size(name: str, value: Any, low: int, high: int) -> int:
    try:
        size = parse_size(value)
    except ValueError as error:
        raise InvalidArgument(f"limits.{name}", str(error)) from None
    if not low <= size <= high:
        bounds = f"{format_size(low)} to {format_size(high)}"
        unit = f", such as {value}MiB" if str(value).isdigit() and low <= size << 20 <= high else ""
        raise InvalidArgument(f"limits.{name}", f"{value!r} bytes is out of range; give {bounds}{unit}")
    return size
