"""What the machine sees of containers that are cells: their processes are an engine's children, and not of the host
application. They are found by the label that says for whom a container is, and by the number of it in cgroups.

Only an engine on this machine can be looked into so, and no container of gVisor's: to the machine it is one process.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from casemate.walls.docker import containers, engine

SUPERVISOR = b"casemate.supervisor.contained"
_first_processes: dict[str, int] = {}  # by the number of the container


def supervisors() -> list[int]:
    """Process 1 of each container that is for this process; none where it has not had the docker wall, and none for an
    ordinary user, who may not look into one."""
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
    """The process of that container that is the first of its own namespace; 0 when there is none any more."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if number in Path(f"/proc/{name}/cgroup").read_text() and _is_first(name):
                return int(name)
    return 0


def _is_first(name: str) -> bool:
    if SUPERVISOR not in Path(f"/proc/{name}/cmdline").read_bytes():
        return False  # another process of the engine's, or not yet
    found = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{name}/status").read_text(), re.MULTILINE)
    return found is not None and found[1] == "1"
