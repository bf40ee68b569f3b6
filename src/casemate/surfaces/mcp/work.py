"""What goes on while a call waits for it, and after the call was answered: a run of a program, or a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from casemate.surfaces.mcp.callers import Caller

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """``status``: "queued", "running", "waiting" or "done"; ``approvals``: the questions it waits for; ``document``:
    all that is known of it."""

    status: str
    approvals: tuple[Document, ...]
    document: Document

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def asked(self) -> frozenset[str]:
        """The ids of what it waits for."""
        return frozenset(str(one["id"]) for one in self.approvals)


class Work(Protocol):
    """Something that takes its time."""

    handle: str
    """What ``read_output`` and ``cancel_run`` take."""

    async def wait(self, seconds: float, seen: frozenset[str]) -> State:
        """Its state when it is done, when it waits for a question that is not among ``seen``, or after so many
        seconds."""
        ...

    async def cancel(self) -> None:
        """End it. Harmless when it is over."""
        ...


@dataclass(slots=True, eq=False)
class Run:
    """A run of a program, by its handle."""

    caller: Caller
    handle: str

    async def wait(self, seconds: float, seen: frozenset[str]) -> State:
        order = {"run": self.handle, "seconds": seconds, "told": sorted(seen)}
        return state_of(await self.caller.invoke("runs.wait", order))

    async def cancel(self) -> None:
        await self.caller.invoke("runs.cancel", {"run": self.handle})


def state_of(document: Mapping[str, Any]) -> State:
    """The state of a run."""
    held = dict(document)
    return State(str(held["status"]), tuple(held.get("approvals") or ()), held)
