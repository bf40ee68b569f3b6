"""A program in a process of its own, behind one wall or none, and what it has to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3] / "src"

BEGINNING = """
import ctypes, errno, json, os, sys
from casemate.supervisor import kernel, landlock, seccomp
from casemate.supervisor.syscall_numbers import numbers

NUMBERS = numbers(os.uname().machine)
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

def call(name, *arguments):
    '''0 or more if the kernel did it, else minus the errno.'''
    number = NUMBERS[name] if isinstance(name, str) else name
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    done = LIBC.syscall(ctypes.c_long(number), *words)
    return done if done >= 0 else -ctypes.get_errno()

def attempt(action, *arguments):
    '''Nothing if it worked, else the name of the errno.'''
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return None

def tell(what):
    print(json.dumps(what))
    sys.stdout.flush()
"""

FILTER = """
kernel.install_filter(seccomp.program(os.uname().machine, memory_is_counted=False))
"""
FILTER_WHEN_COUNTED = """
kernel.install_filter(seccomp.program(os.uname().machine, memory_is_counted=True))
"""
NO_FILTER = ""


def told_by(program: str, *, wall: str, cwd: Path, environment: dict[str, str] | None = None) -> Any:
    """What the program tells last with `tell`, behind the wall. AssertionError with its stderr if it fails."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + wall + program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(cwd), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])
