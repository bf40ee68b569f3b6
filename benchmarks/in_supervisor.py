"""Records times inside the supervisor, for where_time_goes.py.

The supervisor's process imports this module instead of its usual start. The module wraps functions of the supervisor
and starts it. Times go into a shared mapping. The first process of a cell is machine code, so it records none. The
clock is CLOCK_MONOTONIC, as on the host.
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
# The recorded points by slot number: a module of the supervisor, a function in it, and its beginning or end.
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
    """Make this process start its supervisors through this module. They write to the file ``path``."""
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
    """Wrap the recorded functions, and run the supervisor."""
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
