"""Finds the host processes of containers that are cells. They are children of the engine, not of the host application.

A label names a container's owner, and the container's id is in its processes' cgroup paths. This works only for an
engine on this machine, and not for gVisor: the machine sees such a container as one process.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from casemate.walls.docker import containers, engine

SUPERVISOR = b"casemate.supervisor.contained"
_first_processes: dict[str, int] = {}  # by container id


def supervisors() -> list[int]:
    """Process 1 of each container that this process owns. Empty before it uses the docker wall, and for an ordinary
    user, who may not inspect containers' processes."""
    if os.geteuid() or "CASEMATE_TESTS_ENGINE" not in os.environ or "casemate.walls.docker.bridge" not in sys.modules:
        return []
    mark = f'{{"label":["{containers.LABEL}={containers.owner_mark()}"]}}'
    numbers = [str(one["Id"]) for one in engine.find(os.environ).call("GET", "/containers/json", filters=mark) or ()]
    for number in [*_first_processes]:
        if number not in numbers:
            del _first_processes[number]
    for number in numbers:
        if number not in _first_processes and (pid := _first_of(number)):
            _first_processes[number] = pid
    return [*_first_processes.values()]


def _first_of(number: str) -> int:
    """The container's process 1, by its host pid; 0 if it has ended."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if number in Path(f"/proc/{name}/cgroup").read_text() and _is_first(name):
                return int(name)
    return 0


def _is_first(name: str) -> bool:
    if SUPERVISOR not in Path(f"/proc/{name}/cmdline").read_bytes():
        return False  # another process of the engine, or the supervisor has not started yet
    found = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{name}/status").read_text(), re.MULTILINE)
    return found is not None and found[1] == "1"
