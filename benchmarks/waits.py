"""When the process of a new cell begins to wait for its program, as seen from outside by looking again and again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from benchmarks import looking

_LOOK_AGAIN = 0.0005  # seconds
_WITHIN = 0.5  # seconds: a cell that is not there by then is not coming


class Waits:
    """Looks at the cells of this process's one supervisor."""

    def __init__(self) -> None:
        supervisors = [one for one in looking.below(os.getpid()) if one.is_supervisor]
        ours = {one.pid for one in supervisors}
        self._supervisor = next(one.pid for one in supervisors if one.parent in ours)  # the other one only waits for it

    def programs(self) -> set[int]:
        """Processes that a cell's init has started; none where the kernel lists no children (CONFIG_PROC_CHILDREN)."""
        return {pid for init in _children(self._supervisor) for pid in _children(init)}

    async def next_one(self, known: set[int]) -> int:
        """Monotonic nanoseconds when the one process that is not ``known`` was first seen asleep; 0 when none was."""
        deadline = time.monotonic() + _WITHIN
        since = 0
        while time.monotonic() < deadline:
            now = time.monotonic_ns()
            new = self.programs() - known
            if len(new) == 1 and _sleeps(*new):
                if since:  # twice: it does not only wait for a page
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
