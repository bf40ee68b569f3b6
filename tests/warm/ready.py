"""What tests of warm cells wait for, and what the host sees of zygotes and of cells that are ready."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.contract import witness
from tests.support.waiting import MAX_WAIT, until
from tests.warmth import waits

from casemate import Execution, sync
from casemate.model.diagnosis import Warmth

_PAUSE = 0.003
ZYGOTE = "casemate-zygote"


def warmth(sandbox: sync.Sandbox) -> Warmth:
    """What it keeps ready now."""
    return sandbox.asynchronous._wall.warmth()


def settle(sandbox: sync.Sandbox, *languages: str) -> Warmth:
    """Have cells for programs in ``languages`` kept ready, and wait until everything that can be is."""
    sandbox.warm_up(*(languages or ("python",)))
    deadline = time.monotonic() + MAX_WAIT
    while not warmth(sandbox).is_settled:
        assert time.monotonic() < deadline, warmth(sandbox)
        time.sleep(_PAUSE)
    return warmth(sandbox)


def settle_for(sandbox: sync.Sandbox, code: str) -> Warmth:
    """The same for programs such as ``code``, and for those that name none of the preloaded modules."""
    sandbox.warm_up("python")
    sandbox.asynchronous._wall.keep_ready(sandbox.explain(code))
    until(lambda: warmth(sandbox).is_settled)
    return warmth(sandbox)


def at_once(sandbox: sync.Sandbox, codes: Sequence[str], **arguments: Any) -> list[Execution]:
    """Run all of ``codes`` at once."""
    with ThreadPoolExecutor(len(codes)) as threads:
        return list(threads.map(lambda code: sandbox.run(code, **arguments), codes))


def start_of(execution: Execution) -> tuple[str, str]:
    """How its cell was started, and why not otherwise."""
    return execution.isolation.start, execution.isolation.start_reason


def name_of(pid: int) -> str:
    """The name that a process gave itself; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def zygotes(host: int | None = None) -> list[int]:
    """The zygotes of ``host`` (this process when None), as the host numbers them."""
    return [pid for server in witness.serving(host) for pid in witness.children(server) if name_of(pid) == ZYGOTE]


def zygote_of(sandbox: sync.Sandbox, *preload: str) -> int:
    """The one zygote that has loaded ``preload``. Its number in the supervisor's namespace is what is known of it."""
    (inner,) = [one.pid for one in warmth(sandbox).zygotes if one.preload == preload]
    (found,) = [pid for pid in zygotes() if field(pid, "NSpid").split()[1:2] == [str(inner)]]
    return found


def ready_inits(host: int | None = None) -> list[int]:
    """The first process of each cell in which an interpreter waits for its program."""
    inits = [pid for server in witness.serving(host) for pid in witness.children(server)]
    return [pid for pid in inits if any(waits(child) for child in witness.children(pid))]


def ours(host: int | None = None) -> list[int]:
    """Everything below ``host`` that is casemate's or in one of its cells."""
    return [pid for first in witness.supervisors(host) for pid in (first, *witness.descendants(first))]


def all_ready(sandbox: sync.Sandbox) -> list[int]:
    """The same once every cell that is being made is ready, too."""
    until(lambda: len(ready_inits()) == sum(pool.ready for pool in warmth(sandbox).pools))
    return ready_inits()


def stop_waiting(inits: Sequence[int]) -> None:
    """Stop what waits in these cells, so that it does not read what it is given."""
    waiting = [witness.children(init)[0] for init in inits]
    for pid in waiting:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(witness.state(pid) == "T" for pid in waiting))


def field(pid: int, name: str) -> str:
    """A line of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    raise LookupError(name)


def make_venv(folder: Path, **modules: str) -> Path:
    """A virtual environment that has ``modules``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for name, text in modules.items():
        put(folder, name, text)
    return folder


def put(venv: Path, name: str, text: str) -> Path:
    """Install a module, as an installer does it: a new file takes the old one's place."""
    path = venv / f"lib/python3.{sys.version_info[1]}/site-packages/{name}.py"
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)
    return path
