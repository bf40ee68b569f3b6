"""Runs that outlive their caller: a step or a one-shot run that readers can attach to at any time."""

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

_MOST_KEPT = 32  # finished runs of one session or sandbox; each log may hold a file


class Run:
    """A run that :meth:`Session.start` or :meth:`casemate.Sandbox.start` began. ``id`` is that of its execution.

    Its events stay in a file until the session or the sandbox ends. Readers attach at any cursor and see each event
    once. The file takes at most about three times ``limits.full_output``: what the run writes, what it displays, and
    what processes of earlier steps write meanwhile. Attached readers may answer its approval requests.
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
        """``work`` emits the events. ``interrupt`` interrupts the run and returns whether it was running; its argument
        is the emitter, None before the work starts. ``answer`` answers approval requests."""
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
        return self._task.done()

    @property
    def has_begun(self) -> bool:
        """Whether it runs or has run. Until then it waits in the queue."""
        return self._task.done() or (self._emitter is not None and self._emitter.has_begun)

    async def stream(self, cursor: int = 0) -> AsyncGenerator[Event]:
        """Follow its events as they happen; ``Done`` is the last. Leaving the stream does not affect the run.

        Args:
            cursor: The number of the first event, counted from 0. To resume, pass the number of events received so far.

        Raises:
            InvalidArgument: ``cursor`` is not a number of an event.
            SandboxClosed: Its events are no longer kept, or it never began.
            CasemateError: See :meth:`Session.run`.
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
            CasemateError: See :meth:`Session.run`.
        """
        await asyncio.wait([self._task])
        return self._outcome().execution

    async def cancel(self) -> None:
        """Interrupt the run and wait for its end, or remove it from the queue. Does nothing once it is over."""
        if not self._interrupt(self._emitter):
            self._task.cancel()
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """Cancel the run and close its log, because the session or the sandbox ends."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self.forget()

    def forget(self) -> None:
        """Discard its events. Its outcome stays."""
        self.log.close()

    def _outcome(self) -> Done:
        if self._task.cancelled():
            raise SandboxClosed("the run was cancelled before it began, or what it ran in was closed")
        self._task.result()
        assert self._done is not None
        return self._done

    def _count_reader(self, change: int) -> None:
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
    """The started runs of a sandbox or a session, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def add(self, run: Run) -> Run:
        """Add a run, and forget the oldest finished runs."""
        self._runs[run.id] = run
        for old in [run_id for run_id, known in self._runs.items() if known.is_done][:-_MOST_KEPT]:
            self._runs.pop(old).forget()
        return run

    def get(self, run_id: str) -> Run | None:
        """Return the run with this id, or None."""
        return self._runs.get(run_id)

    async def close(self) -> None:
        """End all runs."""
        async with asyncio.TaskGroup() as ending:
            for run in self._runs.values():
                ending.create_task(run.end())
