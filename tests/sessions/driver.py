"""What tests of sessions share: how cells start, what a stream told, and what the host sees of a session's cell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.contract import witness
from tests.support.waiting import MAX_WAIT, until_async
from tests.warmth import starting as starting_runs

from casemate import Display, Done, Event, Execution, Output
from casemate.model.plan import Plan, ReadyStart
from casemate.sessions.session import Session
from casemate.walls.native.pool import Pools
from casemate.walls.native.wall import NativeWall
from casemate.walls.wall import SessionCell, SessionSink

Open = Callable[..., Session]
PROMPT = 30.0  # seconds within which what must be noticed at once is noticed, however busy the machine is
FOREVER = 60.0  # a step's time, which no test waits for
PNG = b"\x89PNG\r\n\x1a\n"
_PAUSE = 0.003
_TAKE = Pools.take

WAIT_FOR_GO: Mapping[str, str] = {  # as part of a program: wait until there is a file called `go`
    "python": "import os as _os, time as _time\nwhile not _os.path.exists('/workspace/go'): _time.sleep(0.005)\n",
    "shell": "while [ ! -e /workspace/go ]; do sleep 0.005; done;",
}


@contextlib.contextmanager
def starting(how: str) -> Iterator[None]:
    """Have every cell of a session started so meanwhile, and that of a run too."""
    with starting_runs(how), _cold_sessions() if how == "exec" else _none_for_the_second_life():
        yield


@contextlib.contextmanager
def _cold_sessions() -> Iterator[None]:
    def cold(wall: NativeWall, plan: Plan, sink: SessionSink) -> SessionCell:
        return real(wall, replace(plan, waiting="this test wants it so"), sink)

    real = NativeWall.open
    with mock.patch.object(NativeWall, "open", cold):
        yield


@contextlib.contextmanager
def _none_for_the_second_life() -> Iterator[None]:
    """A session that goes on with its files does not wait for a cell that is ready: none can have them."""

    def take(warm: Pools, plan: Plan, waiting: ReadyStart, root: str) -> Any:
        return (plain if plan.continues else patient)(warm, plan, waiting, root)

    plain, patient = _TAKE, Pools.take
    with mock.patch.object(Pools, "take", take):
        yield


@pytest.fixture(scope="module", params=["exec", "warm"])
def both_starts(request: pytest.FixtureRequest) -> str:
    """How cells start; a module that imports this as ``start`` has every test twice."""
    return str(request.param)


async def until_there(session: Session, name: str) -> None:
    """Until the workspace has a file of that name."""
    deadline = time.monotonic() + MAX_WAIT
    while name not in [file.name for file in await session.files.list()]:
        assert time.monotonic() < deadline, f"{name} was never made"
        await asyncio.sleep(_PAUSE)


async def said(session: Session, code: str, **arguments: Any) -> str:
    """What a step that must go through prints."""
    async with asyncio.timeout(PROMPT):
        execution = await session.run(code, **arguments)
    assert execution.status == "ok", execution
    return execution.stdout


async def events_of(stream: AsyncIterator[Event]) -> list[Event]:
    """All of them, of which the last and no other is the end."""
    async with asyncio.timeout(PROMPT * 2):
        events = [event async for event in stream]
    assert isinstance(events[-1], Done), events
    assert not any(isinstance(event, Done) for event in events[:-1])
    return events


async def first_text(stream: AsyncIterator[Event]) -> str:
    """The first that the step itself prints."""
    async for event in stream:
        if isinstance(event, Output) and not event.background:
            return event.text
    raise AssertionError("it printed nothing")


def done(events: list[Event]) -> Execution:
    """The outcome that a stream ended with."""
    assert isinstance(events[-1], Done)
    return events[-1].execution


def told(events: list[Event]) -> list[tuple[str, str]]:
    """What was said, in order, with pieces of one stream joined: (stream or kind, text)."""
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, Output):
            kind, text = event.stream + ("*" if event.background else ""), event.text
            if found and found[-1][0] == kind:
                text = found.pop()[1] + text
            found.append((kind, text))
        elif isinstance(event, Display):
            found.append(("update" if event.update else "display", event.result.text or ""))
        elif hasattr(event, "result"):
            found.append(("result", event.result.text or ""))
        elif hasattr(event, "error"):
            found.append(("error", event.error.name))
    return found


def background(events: list[Event]) -> str:
    """Everything that was told as left over from an earlier step."""
    return "".join(event.text for event in events if isinstance(event, Output) and event.background)


# -- the host's view


def ours() -> list[int]:
    """Every process below this one that is casemate's or in one of its cells."""
    return [pid for first in witness.supervisors() for pid in (first, *witness.descendants(first))]


def called(mark: str) -> list[int]:
    """Processes of ours with this word on their command line."""
    return [pid for pid in ours() if mark.encode() in witness.command(pid).split(b"\0")]


async def cell_of(session: Session) -> list[int]:
    """Every process in the session's cell, its init first. Leaves a child process there."""
    mark = f"{1000 + int.from_bytes(os.urandom(4), 'big')}"
    code = {
        "python": f"import subprocess as _sp; _sleeper = _sp.Popen(['sleep', '{mark}'])",
        "node": f"void require('child_process').spawn('sleep', ['{mark}'], {{detached: true}}).unref()",
        "shell": f"sleep {mark} &",
    }[session.language]
    await said(session, code)
    await until_async(lambda: called(mark), "the child process was never seen")
    pid = called(mark)[0]
    while Path(f"/proc/{pid}/comm").read_text().strip() != "casemate-init":
        pid = parent(pid)
    return [pid, *witness.descendants(pid)]


def parent(pid: int) -> int:
    """The parent's number."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
