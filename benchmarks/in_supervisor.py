"""Notes when things happen inside the supervisor, for where_time_goes.py.

It is imported by the supervisor in place of its usual start, wraps functions of the supervisor's modules in its
memory, and starts it. Times go into a shared mapping. In the first process of a cell, which is machine code, nothing is
noted. The clock is CLOCK_MONOTONIC, the same on the host.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

SLOT = 8  # bytes: one time in nanoseconds
# What is noted, by number of its slot: a module of the supervisor, a name in it, and which end of it.
POINTS: tuple[tuple[str, str, str], ...] = (
    ("serve", "SupervisorLoop._launch", "begin"),
    ("scratch", "prepare", "begin"),
    ("scratch", "prepare", "end"),
    ("pool", "CellPool.take", "end"),
    ("cgroups", "CellCgroup.limit", "end"),
    ("serve", "SupervisorLoop._begin", "begin"),
    ("scratch", "Scratch.add_program", "end"),
    ("cells", "splice_order", "begin"),
    ("serve", "SupervisorLoop._read_status", "begin"),
    ("serve", "SupervisorLoop._report_end", "begin"),
    ("namespaced", "NamespaceMaker.prefork", "begin"),
    ("namespaced", "NamespaceMaker.prefork", "end"),
    ("pool", "PendingCell.__init__", "begin"),
    ("namespaced", "NamespaceMaker.adopt_process", "begin"),
    ("namespaced", "NamespaceMaker.adopt_process", "end"),
    ("serve", "SupervisorLoop._start_cell", "end"),
)


def slot_of(module: str, name: str, end: str) -> int:
    return POINTS.index((module, name, end))


def observe(path: str) -> None:
    """Have this process start its supervisors with this in them, writing into the file ``path``."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = f"os.environ['CASEMATE_ROOT'], {here!r}"
    boot = f"import os, sys; sys.path += [{paths}]; import in_supervisor; in_supervisor.start({path!r})"
    spawn = os.posix_spawn

    def spawn_observed(program: Any, argv: Any, env: Any, **options: Any) -> int:
        if argv[-1] == "casemate-supervisor":
            argv = [*argv[:-2], boot, argv[-1]]
        return spawn(program, argv, env, **options)

    os.posix_spawn = spawn_observed


def start(path: str) -> None:
    """Wrap what is noted, and be the supervisor."""
    import importlib

    fd = os.open(path, os.O_RDWR)
    mapping = mmap.mmap(fd, len(POINTS) * SLOT)
    from casemate.supervisor.main import main

    for module, name, _ in dict.fromkeys((module, name, "") for module, name, _ in POINTS):
        holder: Any = importlib.import_module(f"casemate.supervisor.{module}")
        *outer, last = name.split(".")
        for part in outer:
            holder = getattr(holder, part)
        slots = [POINTS.index(p) if (p := (module, name, end)) in POINTS else None for end in ("begin", "end")]
        setattr(holder, last, _wrapped(getattr(holder, last), mapping, slots))
    sys.path.pop()
    main()


def _wrapped(function: Callable[..., Any], mapping: mmap.mmap, slots: list[int | None]) -> Callable[..., Any]:
    begin, end = slots

    def noting(*arguments: Any, **named: Any) -> Any:
        if begin is not None:
            struct.pack_into("=q", mapping, begin * SLOT, time.monotonic_ns())
        try:
            return function(*arguments, **named)
        finally:
            if end is not None:
                struct.pack_into("=q", mapping, end * SLOT, time.monotonic_ns())

    return noting
