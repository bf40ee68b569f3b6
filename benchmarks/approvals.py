"""The time from an approver's answer to the code that waited for it, and the memory of a thousand pending requests.

The cell is not paused yet, or paused, or paused while a thousand other requests are pending. A sample begins with the
answer and ends when the code's next output has left the cell.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.looking import below, private_bytes
from benchmarks.measure import Goal, Series
from casemate import ApprovalRequest, Output, Sandbox
from casemate.approvals.requester import Origin
from casemate.model.approval import Question
from casemate.sessions.session import Session

_OTHERS = 1000
_STEP = "approvals.require('true'); print('on')"  # asks like a command, but starts none
_WAKE = Goal(plus=5e-3)
_PAUSE = 0.002  # seconds between checks whether the cell is paused


def main() -> None:
    run = measure.Run("approvals", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-approvals-") as folder:
        asyncio.run(_measure(run, folder))
    run.finish()


async def _measure(run: measure.Run, folder: str) -> None:
    async with Sandbox(audit=f"{folder}/audit.db", approval_timeout=None) as sandbox, sandbox.session() as session:
        sandbox.approvals.rules.set_default("shell", "ask")
        await session.run("from _casemate.session_commands import approvals")
        rounds = run.rounds(200)
        running = await _answered(session, rounds, paused=False)
        paused = await _answered(session, rounds, paused=True)
        before, threads = private_bytes(os.getpid()), threading.active_count()
        with sandbox.approvals.open():
            await _have_others_wait(sandbox)
            held, more = private_bytes(os.getpid()) - before, threading.active_count() - threads
            crowded = await _answered(session, rounds, paused=True)
        run.compare(
            "from an answer to the code that waited",
            [
                Series("not paused yet", running),
                Series("paused", paused, _WAKE),
                Series(f"paused, {_OTHERS:,} others wait", crowded, _WAKE),
            ],
        )
        run.note(f"{_OTHERS:,} requests that wait hold {held / 1e6:.1f} MB, and {more} threads")


async def _have_others_wait(sandbox: Sandbox) -> None:
    """Make requests of other runs. Sixteen of each run are pending; the others queue behind these."""
    for number in range(_OTHERS):
        requester = sandbox.approvals.requester(Origin("default", f"session {number % 20}", f"run {number % 20}"), None)
        requester.decide(Question("tool", "read a file", {"path": f"/a/file/{number}"}, server="files", tool="read"))
    while len(sandbox.approvals.pending()) < 16 * 20:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(_PAUSE)


async def _answered(session: Session, rounds: int, *, paused: bool) -> tuple[float, ...]:
    return tuple([await _once(session, paused=paused) for _ in range(rounds + 1)][1:])


async def _once(session: Session, *, paused: bool) -> float:
    start = end = 0.0
    async for event in session.stream(_STEP):
        if isinstance(event, ApprovalRequest):
            while paused and not _is_paused():  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(_PAUSE)
            start = time.perf_counter()
            await event.approve()
        elif isinstance(event, Output):
            end = time.perf_counter()
    return end - start


def _is_paused() -> bool:
    """Whether the session's cell is paused. No other cell can be paused here."""
    return any(_state(one.pid) == "T" for one in below(os.getpid()))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


if __name__ == "__main__":
    main()
