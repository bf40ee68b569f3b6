"""Starts the Python interpreter of a session as a cell does, but for the walls."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from tests.unit.guest.session_driver import Session
from tests.unit.guest.stage import BASE_ENV, HOOK

needs_ipython = pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="needs IPython: pip install ipython"
)
PROGRAM = "from _casemate import session\nsession.main()\n"
# What a zygote does before it forks a cell, and what the cell does then.
FORKED = f"""
import gc, os, sys
before = set(sys.modules)
from _casemate import process, session
threads = os.listdir("/proc/self/task")
gc.collect(); process.keep_loaded_modules(); gc.disable()
pid = os.fork()
if pid:
    os.close(3); os.close(6)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
gc.enable()
sys.in_zygote = len(threads), "__IPYTHON__" in vars(__builtins__), hasattr(sys, "ps1"), sys.stdout.name
{PROGRAM}
"""


@cache
def _takes_safe_path(python: str) -> bool:
    return subprocess.call([python, "-c", "import sys; sys.exit(sys.version_info >= (3, 11))"]) == 1


def start(
    folder: Path, program: str = PROGRAM, *, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> Session:
    """A session that is ready, or that has said why it is not."""
    path = folder / "program" / "main.py"
    path.parent.mkdir(parents=True)
    path.write_text(program, encoding="utf-8")
    whole = {**BASE_ENV, "HOME": str(folder / "home"), "PYTHONPATH": str(HOOK), "PYTHONDONTWRITEBYTECODE": "1"}
    del whole["MPLBACKEND"]
    session = Session(
        folder, [python, *(["-P"] if _takes_safe_path(python) else []), str(path)], {**whole, **(env or {})}
    )
    try:
        return session.wait_until_ready()
    except BaseException:
        session.close()
        raise
