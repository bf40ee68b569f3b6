"""Finds when a new cell's process begins to wait for its program, by polling from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from benchmarks import looking

_LOOK_AGAIN = 0.0005  # seconds
_WITHIN = 0.5  # seconds: after that no new cell is expected


class Waits:
    """Observes the cells of this process's only supervisor."""

    def __init__(self) -> None:
        supervisors = [one for one in looking.below(os.getpid()) if one.is_supervisor]
        ours = {one.pid for one in supervisors}
        self._supervisor = next(one.pid for one in supervisors if one.parent in ours)  # the parent only waits for it

    def programs(self) -> set[int]:
        """Processes started by cells' inits. Empty if the kernel lists no children (CONFIG_PROC_CHILDREN)."""
        return {pid for init in _children(self._supervisor) for pid in _children(init)}

    async def next_one(self, known: set[int]) -> int:
        """When the only process outside ``known`` was first seen asleep, in monotonic nanoseconds; 0 if none was."""
        deadline = time.monotonic() + _WITHIN
        since = 0
        while time.monotonic() < deadline:
            now = time.monotonic_ns()
            new = self.programs() - known
            if len(new) == 1 and _sleeps(*new):
                if since:  # twice asleep: it is not just waiting for a memory page
                    return since
                since = now
            else:
                since = 0
            await asyncio.sleep(_LOOK_AGAIN)
        return 0


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _sleeps(pid: int) -> bool:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return status[status.rindex(")") + 2] == "S"
    return False
