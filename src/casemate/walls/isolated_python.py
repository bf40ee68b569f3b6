"""Starts our own modules as isolated Python processes. Cheap to import, because the first starts before anything
else."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_BOOT = "import os, sys; sys.path.append(os.environ['CASEMATE_ROOT']); from casemate.supervisor.{} import main; main()"


def spawn(module: str, name: str, stdin: int, stderr: int, arguments: Sequence[str] = ()) -> int:
    """Start ``main`` of a supervisor module without site packages or environment; only two descriptors are inherited.

    Its first argument is its ``name``; ``arguments`` follow. argv[0] must be the interpreter's own path: with any other
    name the interpreter searches for its library in the current folder and its parents, which anyone may control
    (CPython's getpath.py).
    """
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _BOOT.format(module), name, *arguments],
            {"CASEMATE_ROOT": package_root},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},  # even those our caller ignores
        )
    finally:
        os.close(null)
