"""How much one execution may use."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from casemate.errors import InvalidArgument
from casemate.model.sizes import format_size, parse_size

_MIB = 2**20
_WEEK = 7 * 86400.0

# What a limit may be, as name: (smallest, largest); what lies outside is a mistake, not a wish.
SIZES = {
    "memory": (16 * _MIB, 2**44),
    "output": (256, 2**30),
    "full_output": (256, 2**36),
    "disk": (2**16, 2**42),
}
COUNTS = {"processes": (1, 32768), "inodes": (32, 10**8), "open_files": (16, 2**20)}
SECONDS = {"cpu_time": (0.01, _WEEK), "wall": (0.01, _WEEK)}
CPUS = (0.01, 4096.0)


@dataclass(frozen=True, slots=True, init=False)
class Limits:
    """How much one execution may use; every field is kept as a plain number.

    ``memory``, ``output``, ``full_output``, ``disk``: bytes, given as a number or ``"512MiB"``.
    ``memory`` is all memory of the cell together; ``output`` what is returned of each of stdout
    and stderr, ``full_output`` what is kept of both in a file; ``disk`` and ``inodes`` everything
    written in the cell (workspace, /tmp, /dev/shm). ``cpus``: cores; ``cpu_time`` and ``wall``:
    seconds (``cpu_time`` None is no limit of its own); ``processes``: tasks, so threads count;
    ``open_files``: descriptors of each process.

    Raises :class:`casemate.InvalidArgument` naming the field.
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

    def __init__(
        self,
        memory: str | int = "512MiB",
        cpus: float = 1.0,
        cpu_time: float | None = None,
        processes: int = 64,
        wall: float = 60.0,
        output: str | int = "1MiB",
        full_output: str | int = "64MiB",
        disk: str | int = "256MiB",
        inodes: int = 20000,
        open_files: int = 1024,
    ) -> None:
        sizes = {"memory": memory, "output": output, "full_output": full_output, "disk": disk}
        counts = {"processes": processes, "inodes": inodes, "open_files": open_files}
        values: dict[str, Any] = {name: _size(name, value) for name, value in sizes.items()}
        values |= {name: _count(name, value) for name, value in counts.items()}
        values["cpus"] = _number("cpus", cpus, *CPUS)
        values["wall"] = _number("wall", wall, *SECONDS["wall"])
        values["cpu_time"] = None if cpu_time is None else _number("cpu_time", cpu_time, *SECONDS["cpu_time"])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def narrowed(self, other: Limits | None) -> Limits:
        """These limits with every field of ``other`` that is tighter; never a wider one."""
        if other is None:
            return self
        tighter: dict[str, Any] = {}
        for field in fields(self):
            given = [v for v in (getattr(self, field.name), getattr(other, field.name)) if v is not None]
            tighter[field.name] = min(given, default=None)
        return Limits(**tighter)


def _size(name: str, value: str | int) -> int:
    low, high = SIZES[name]
    try:
        size = parse_size(value)
    except ValueError as error:
        raise InvalidArgument(f"limits.{name}", str(error)) from None
    if not low <= size <= high:
        raise InvalidArgument(
            f"limits.{name}", f"{value!r} is out of range; give {format_size(low)} to {format_size(high)}"
        )
    return size


def _count(name: str, value: int) -> int:
    low, high = COUNTS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"limits.{name}", f"{value!r} is not a whole number from {low} to {high}")
    return value


def _number(name: str, value: float, low: float, high: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value != value or not low <= value <= high:  # NaN is not equal to itself
        shown = repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "a much larger one"
        raise InvalidArgument(f"limits.{name}", f"{shown} is not a number from {low:g} to {high:g}")
    return float(value)
