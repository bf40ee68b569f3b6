"""A step, or a run of its own, that goes on when whoever began it goes away: anyone who has it may attach to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument, SandboxClosed
from casemate.execution.stream import events
from casemate.model.events import Done, Event
from casemate.sessions.tape import Answerer, Tape

if TYPE_CHECKING:
    from casemate.execution.emitter import Emitter
    from casemate.model.execution import Execution


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
        interrupt: Callable[[], bool],
        answerer: Answerer,
    ) -> None:
        """``work`` tells what happens; ``interrupt``: interrupts the step, if it runs; whether it does. ``answerer``:
        how what it asks is answered."""
        self.id = run_id
        self._interrupt = interrupt
        self._tape = Tape(answerer)
        self._readers = 0
        self._emitter: Emitter | None = None

        def followed(emitter: Emitter) -> Coroutine[Any, Any, object]:
            self._emitter = emitter
            emitter.follow(bool(self._readers))
            return work(emitter)

        self._news = asyncio.Event()  # set, and replaced, when there is more
        self._done: Done | None = None
        self._task = asyncio.ensure_future(self._record(events(followed)))  # noqa: TID251 - ended by the session, see `end`
        self._task.add_done_callback(lambda _: self._tell())

    def __repr__(self) -> str:
        return f"<Run {self.id}{' done' if self.is_done else ''}>"

    @property
    def is_done(self) -> bool:
        """Whether it is over."""
        return self._task.done()

    @property
    def has_begun(self) -> bool:
        """Whether its turn has come; until then it waits for others."""
        return self._task.done() or (self._emitter is not None and self._emitter.has_begun)

    async def stream(self, cursor: int = 0) -> AsyncGenerator[Event]:
        """Events from the one with number ``cursor`` on, counted from 0, as they happen; ``Done`` is the last.

        Whoever comes again gives the number of events that were received. Leaving changes nothing. Raises as
        :meth:`Session.run` does.
        """
        if isinstance(cursor, bool) or not isinstance(cursor, int) or cursor < 0:
            raise InvalidArgument("cursor", f"{cursor!r} is not the number of an event, counted from 0")
        self._follow(1)
        try:
            while True:
                news, is_over = self._news, self._task.done()
                while cursor < len(self._tape):
                    if self._tape.is_closed:
                        raise SandboxClosed("the events of this run are no longer kept; wait() gives its outcome")
                    yield self._tape.read(cursor)
                    cursor += 1
                if is_over:
                    break
                await news.wait()
        finally:
            self._follow(-1)
        if cursor <= len(self._tape):
            yield self._outcome()

    async def wait(self) -> Execution:
        """The outcome, once it is over. Raises as :meth:`Session.run` does."""
        await asyncio.wait([self._task])
        return self._outcome().execution

    async def cancel(self) -> None:
        """Interrupt the step, and wait for its end; one that has not begun never will. Harmless when it is over."""
        if not self._interrupt():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """The session, or the sandbox, ends."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self.forget()

    def forget(self) -> None:
        """Its events are not wanted any more; its outcome stays."""
        self._tape.close()

    def _outcome(self) -> Done:
        if self._task.cancelled():
            raise SandboxClosed("the run was cancelled before it began, or what it ran in was closed")
        self._task.result()
        assert self._done is not None
        return self._done

    def _follow(self, change: int) -> None:
        """One reader more, or less."""
        self._readers += change
        if self._emitter is not None:
            self._emitter.follow(bool(self._readers))

    async def _record(self, happened: AsyncGenerator[Event]) -> None:
        try:
            async for event in happened:
                if isinstance(event, Done):
                    self._done = event
                else:
                    self._tape.write(event)
                    self._tell()
        finally:
            await happened.aclose()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
