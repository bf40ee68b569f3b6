"""Records moments for where_time_goes.py by wrapping host functions; in_supervisor.py records the other moments."""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import in_supervisor

Moment = tuple[str, str, str]  # a module of the supervisor or "host", a name in it, "begin" or "end"


class Noted:
    """The moments of the current run: the host's in this object, the others in the mapping."""

    def __init__(self, path: str) -> None:
        size = len(in_supervisor.POINTS) * in_supervisor.SLOT
        Path(path).write_bytes(bytes(size))
        with open(path, "r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), size)
        self.host: dict[tuple[str, str], int] = {}

    def at(self, moment: Moment) -> int:
        """The time of ``moment`` in nanoseconds; 0 if it did not happen."""
        module, name, end = moment
        if module == "host":
            return self.host.get((name, end), 0)
        (value,) = struct.unpack_from("=q", self._mapping, in_supervisor.slot_of(*moment) * in_supervisor.SLOT)
        return int(value)

    def note(self, name: str, end: str) -> None:
        self.host[name, end] = time.monotonic_ns()

    def wrap(self, holder: Any, attribute: str, name: str) -> None:
        """Record the beginning and the end of a function, including the await of its result. Without a ``name``, the
        function's first argument names the moment; for a row of the record this is its kind."""
        inner: Callable[..., Any] = getattr(holder, attribute)

        def noting(*arguments: Any, **named: Any) -> Any:
            moment = name or str(arguments[1])
            self.note(moment, "begin")
            try:
                return inner(*arguments, **named)
            finally:
                self.note(moment, "end")

        async def noting_awaited(*arguments: Any, **named: Any) -> Any:
            self.note(name, "begin")
            try:
                return await inner(*arguments, **named)
            finally:
                self.note(name, "end")

        setattr(holder, attribute, noting_awaited if asyncio.iscoroutinefunction(inner) else noting)
