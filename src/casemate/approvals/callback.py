"""The application's own approver, ``Sandbox(approve=...)``: a callable.

An async one is called in the event loop in which the run was begun, and for several requests at once. Any other is
called in a thread, for one request after the other: it may ask a person at a terminal. One that does not return is
left behind when its request is over, so that the next is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from casemate.approvals.channels import Desk, Held, decision_of
from casemate.model.approval import ApprovalRequest, Decision

_MOST_LEFT_BEHIND = 16  # threads in which the approver has not returned; with so many it counts as gone
_MOST_LEFT_BEHIND_FOR_ONE = 3  # for one session or run: it must not use them up for the others
_FAILED = "the approver failed"
Approve = Callable[[ApprovalRequest], Any]


class AsyncCallback:
    """An approver that is a coroutine function. Its tasks are ended by `withdraw`, at the latest when a run is over."""

    name = "approve"
    is_there = True

    def __init__(self, approve: Approve, desk: Desk) -> None:
        self._approve = approve
        self._desk = desk
        self._tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        self._lock = threading.Lock()
        self._wanted: set[str] = set()

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop | None) -> Held:  # noqa: ARG002
        if loop is None:
            return "gone"
        with self._lock:
            self._wanted.add(request.id)
        try:
            loop.call_soon_threadsafe(self._begin, request, loop)
        except RuntimeError:  # the loop is closed
            return "gone"
        return "taken"

    def withdraw(self, request: str) -> None:
        with self._lock:
            self._wanted.discard(request)
            loop, task = self._tasks.get(request, (None, None))
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    async def ended(self, requests: set[str], seconds: float) -> None:
        """Wait until nothing is called for ``requests``, which were withdrawn, any more; at most so long."""
        here = asyncio.get_running_loop()
        with self._lock:
            self._wanted -= requests
            tasks = [task for request in requests for loop, task in [self._tasks.get(request, (None, None))]
                     if task is not None and loop is here]  # fmt: skip
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _begin(self, request: ApprovalRequest, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if request.id not in self._wanted:
                return
            task = asyncio.ensure_future(self._ask(request))  # noqa: TID251 - ended by `withdraw` and `ended`
            self._tasks[request.id] = (loop, task)
        task.add_done_callback(lambda _: self._forget(request.id))

    def _forget(self, request: str) -> None:
        with self._lock:
            self._tasks.pop(request, None)
            self._wanted.discard(request)

    async def _ask(self, request: ApprovalRequest) -> None:
        decision, note = None, ""
        try:
            decision = decision_of(await self._approve(request))
        except Exception as error:  # noqa: BLE001 - whatever it raises, it has not allowed
            decision, note = Decision(reason=_FAILED), _told(error)
        finally:
            with self._lock:
                is_wanted = request.id in self._wanted
            if decision is not None:
                self._desk.answer(request.id, decision, self.name, note)
            elif is_wanted:
                self._desk.gone(self, request.id)


class ThreadCallback:
    """Any other approver."""

    name = "approve"

    def __init__(self, approve: Approve, desk: Desk) -> None:
        self._approve = approve
        self._desk = desk
        self._lock = threading.Lock()
        self._waiting: deque[tuple[ApprovalRequest, asyncio.AbstractEventLoop | None]] = deque()
        self._working: object = None  # the thread that is to go on
        self._current = self._current_of = ""  # the request that the approver is at, and whose it is
        self._left_behind: dict[object, str] = {}  # threads in which the approver has not returned, and for whom
        self._coroutines: dict[str, Future[Any]] = {}  # that it has returned, by request

    @property
    def is_there(self) -> bool:
        return len(self._left_behind) < _MOST_LEFT_BEHIND

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop | None) -> Held:  # noqa: ARG002
        with self._lock:
            left = sum(of == _of(request) for of in self._left_behind.values())
            if not self.is_there or left >= _MOST_LEFT_BEHIND_FOR_ONE:
                return "gone"
            self._waiting.append((request, loop))
            self._go_on()
        return "waits"

    def withdraw(self, request: str) -> None:
        with self._lock:
            if request == self._current:
                self._left_behind[self._working] = self._current_of
                self._working, self._current = None, ""
                self._go_on()
            elif self._waiting:
                self._waiting = deque(item for item in self._waiting if item[0].id != request)
            is_gone, coroutine = not self.is_there, self._coroutines.get(request)
        if coroutine is not None:
            coroutine.cancel()
        if is_gone:
            self._desk.gone(self)

    async def ended(self, requests: set[str], seconds: float) -> None:
        """A thread cannot be ended; what it answers is too late."""

    def _go_on(self) -> None:
        """Somebody is to work, if there is anything to do. Under the lock."""
        if self._working is None and self._waiting and self.is_there:
            self._working = object()
            name = "casemate-approve"
            threading.Thread(target=self._work, args=(self._working,), name=name, daemon=True).start()

    def _work(self, me: object) -> None:
        while (item := self._next(me)) is not None:
            request, loop = item
            is_wanted = self._desk.taken(request.id)
            decision, note = self._asked(request, loop) if is_wanted else (Decision(), "")
            with self._lock:
                if self._working is me:
                    self._current = ""
            if is_wanted:
                self._desk.answer(request.id, decision, self.name, note)
        with self._lock:
            self._left_behind.pop(me, None)

    def _next(self, me: object) -> tuple[ApprovalRequest, asyncio.AbstractEventLoop | None] | None:
        with self._lock:
            if self._working is not me:
                return None
            if not self._waiting:
                self._working = None
                return None
            item = self._waiting.popleft()
            self._current, self._current_of = item[0].id, _of(item[0])
            return item

    def _asked(self, request: ApprovalRequest, loop: asyncio.AbstractEventLoop | None) -> tuple[Decision, str]:
        try:
            answer = self._approve(request)
            if inspect.isawaitable(answer):
                if loop is None:
                    return Decision(reason=_FAILED), "it is a coroutine, and there is no event loop"
                with self._lock:
                    self._coroutines[request.id] = asyncio.run_coroutine_threadsafe(_awaited(answer), loop)
                answer = self._coroutines[request.id].result()
            return decision_of(answer), ""
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it has not allowed
            return Decision(reason=_FAILED), _told(error)
        finally:
            with self._lock:
                self._coroutines.pop(request.id, None)


def _of(request: ApprovalRequest) -> str:
    """Whose it is: a session's, or a run's of its own."""
    return request.session or request.run


async def _awaited(answer: Any) -> object:
    return await answer


def _told(error: BaseException) -> str:
    """For the record: what the code that asked is not to know of the host."""
    return f"{type(error).__name__}: {error}"
