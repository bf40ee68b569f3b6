"""Jobs: what was asked for, waits for an approval, and is no program. An installation, a new server, a new host.

The operation behind it goes on while calls come and go, in a task of the server's own; its result is kept until it was
read, or pushed out by later ones.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from casemate.errors import CasemateError, Fault
from casemate.surfaces.mcp.call import Refused
from casemate.surfaces.mcp.work import Document, State

if TYPE_CHECKING:
    from casemate.surfaces.mcp.callers import Caller, Callers

_PREFIX = "job-"
_MOST = 64  # jobs of one caller that are kept
_LOOK_EVERY = 0.2  # seconds between two looks at who is asked what
Concerns = Callable[[Document], bool]
Told = Callable[[Any], tuple[str, bool]]  # the words, and whether it failed


class Job:
    """``operation`` with ``arguments``, of one caller. ``concerns``: whether a question is one of this job's;
    ``told``: its result in words."""

    def __init__(
        self, caller: Caller, operation: str, arguments: Mapping[str, Any], concerns: Concerns, told: Told
    ) -> None:
        self.handle = f"{_PREFIX}{secrets.token_hex(12)}"
        self.told = told
        self.result: Any = None
        self.error: CasemateError | None = None
        self._caller = caller
        self._order = (operation, dict(arguments))
        self._concerns = concerns
        self._over = anyio.Event()
        self._scope = anyio.CancelScope()

    async def carry_out(self) -> None:
        """Do it, to the end or until it is cancelled. Never raises."""
        try:
            with self._scope:
                self.result = await self._caller.invoke(*self._order)
            if self._scope.cancelled_caught:
                self.error = Refused("it was cancelled")
        except CasemateError as error:
            self.error = error
        except anyio.get_cancelled_exc_class():
            self.error = Refused("the server ended meanwhile")
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever waits for it, and no other job ends with it
            self.error = Fault(f"{type(error).__name__}: {error}")
        finally:
            self._over.set()

    async def wait(self, seconds: float, seen: frozenset[str]) -> State:
        end = anyio.current_time() + seconds
        while True:
            if self._over.is_set():
                return State("done", (), {})
            asked = await self._asked()
            state = State("waiting" if asked else "running", asked, {})
            left = end - anyio.current_time()
            if state.asked - seen or left <= 0:
                return state
            with anyio.move_on_after(min(_LOOK_EVERY, left)):
                await self._over.wait()

    async def cancel(self) -> None:
        self._scope.cancel()

    async def _asked(self) -> tuple[Document, ...]:
        """The person's list of questions is the only place where those of a job can be seen."""
        if self._caller.person is None:
            return ()
        with contextlib.suppress(CasemateError):
            return tuple(one for one in await self._caller.person("approvals.pending", {}) if self._concerns(one))
        return ()


def begin(callers: Callers, caller: Caller, job: Job) -> Job:
    """Start a job. Raises :class:`Refused` where too many are going on."""
    kept = caller.jobs
    if len(kept) >= _MOST:
        over = next((handle for handle, one in kept.items() if one._over.is_set()), None)
        if over is None:
            raise Refused(f"{_MOST} jobs of yours are going on: wait for one, or cancel it with cancel_run")
        del kept[over]
    kept[job.handle] = job
    assert callers.tasks is not None
    callers.tasks.start_soon(job.carry_out)
    return job


def is_job(handle: str) -> bool:
    """Whether a handle is that of a job, rather than of a run."""
    return handle.startswith(_PREFIX)


def job_of(caller: Caller, handle: str) -> Job:
    """The caller's own job with this handle. Raises :class:`Refused`."""
    try:
        return caller.jobs[handle]
    except KeyError:
        raise Refused(f"there is no run {handle!r}: it is not yours, or was over too long ago") from None
