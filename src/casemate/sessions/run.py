"""A step, or a run of its own, that goes on when whoever began it goes away: anyone who has it may attach to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument, SandboxClosed
from casemate.execution.capture import stream_events
from casemate.execution.event_log import EventLog
from casemate.model.events import Answer, Done, Event

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter
    from casemate.model.execution import Execution

_MOST_KEPT = 32  # runs of one session or sandbox that are over; the log of each may hold a file


class Run:
    """What was begun with :meth:`Session.start` or :meth:`casemate.Sandbox.start`. ``id`` is that of its execution.

    Its events are kept in a file until the session or the sandbox ends, so each attached reader gets every one, from
    wherever it asks, none twice. That is at most about three times ``limits.full_output``: what it writes, what it
    shows, and what earlier steps left running write meanwhile. What it asks may be answered by whoever reads them: as
    long as somebody does.
    """

    def __init__(
        self,
        run_id: str,
        work: Callable[[Emitter], Coroutine[Any, Any, object]],
        interrupt: Callable[[Emitter | None], bool],
        answer: Answer,
        *,
        is_step: bool,
    ) -> None:
        """``work`` emits what happens; ``interrupt`` ends it, if it runs, and says whether it does: it gets the emitter
        once the work has begun. ``answer``: how
        what it asks is answered."""
        self.id = run_id
        self.log = EventLog(is_step=is_step)
        self._interrupt = interrupt
        self._answer = answer
        self._readers = 0
        self._emitter: Emitter | None = None

        def follow(emitter: Emitter) -> Coroutine[Any, Any, object]:
            self._emitter = emitter
            emitter.set_followed(bool(self._readers))
            return work(emitter)

        self._done: Done | None = None
        self._task = asyncio.ensure_future(self._record(stream_events(follow)))  # noqa: TID251 - ended by the session, see `end`
        self._task.add_done_callback(lambda _: self.log.finish())

    def __repr__(self) -> str:
        return f"<Run {self.id}{' done' if self.is_done else ''}>"

    @property
    def is_done(self) -> bool:
        """Whether it is over."""
        return self._task.done()

    @property
    def has_begun(self) -> bool:
        """Whether it runs or has run; until then it waits for others."""
        return self._task.done() or (self._emitter is not None and self._emitter.has_begun)

    async def stream(self, cursor: int = 0) -> AsyncGenerator[Event]:
        """Follow its events as they happen; ``Done`` is the last. Leaving changes nothing.

        Args:
            cursor: The number of the first event, counted from 0. Whoever comes again gives the number of events that
                were received.

        Raises:
            InvalidArgument: ``cursor`` is no such number.
            SandboxClosed: Its events are no longer kept, or it never began.
            CasemateError: As of :meth:`Session.run`.
        """
        if isinstance(cursor, bool) or not isinstance(cursor, int) or cursor < 0:
            raise InvalidArgument("cursor", f"{cursor!r} is not the number of an event, counted from 0")
        self._count_reader(1)
        try:
            while not (self.is_done and cursor >= self.log.events):
                await self.log.wait(cursor)
                if cursor < self.log.events and not self.log.is_readable:
                    raise SandboxClosed("the events of this run are no longer kept; wait() gives its outcome")
                for event in self.log.read_events(cursor, self._answer):
                    yield event
                    cursor += 1
        finally:
            self._count_reader(-1)
        if cursor <= self.log.events:
            yield self._outcome()

    async def wait(self) -> Execution:
        """Wait for its outcome.

        Raises:
            CasemateError: As of :meth:`Session.run`.
        """
        await asyncio.wait([self._task])
        return self._outcome().execution

    async def cancel(self) -> None:
        """Interrupt the step, and wait for its end; one that has not begun never will. Harmless when it is over."""
        if not self._interrupt(self._emitter):
            self._task.cancel()
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """The session, or the sandbox, ends."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self.forget()

    def forget(self) -> None:
        """Its events are not wanted any more; its outcome stays."""
        self.log.close()

    def _outcome(self) -> Done:
        if self._task.cancelled():
            raise SandboxClosed("the run was cancelled before it began, or what it ran in was closed")
        self._task.result()
        assert self._done is not None
        return self._done

    def _count_reader(self, change: int) -> None:
        """One reader more, or less."""
        self._readers += change
        if self._emitter is not None:
            self._emitter.set_followed(bool(self._readers))

    async def _record(self, emitted: AsyncGenerator[Event]) -> None:
        try:
            async for event in emitted:
                if isinstance(event, Done):
                    self._done = event
                else:
                    self.log.append(event)
        finally:
            await emitted.aclose()


class StartedRuns:
    """The runs of a sandbox or a session that were started and go on by themselves, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def add(self, run: Run) -> Run:
        """One more; the events of the oldest that are over are forgotten."""
        self._runs[run.id] = run
        for old in [run_id for run_id, known in self._runs.items() if known.is_done][:-_MOST_KEPT]:
            self._runs.pop(old).forget()
        return run

    def get(self, run_id: str) -> Run | None:
        """The run with this id, where there is one."""
        return self._runs.get(run_id)

    async def close(self) -> None:
        """End all of them."""
        async with asyncio.TaskGroup() as ending:
            for run in self._runs.values():
                ending.create_task(run.end())
