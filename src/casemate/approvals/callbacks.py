"""The application's own approver, ``Sandbox(approve=...)``: a callable.

An async approver is called in the event loop in which the run was begun, for several requests at once. Any other is
called in a thread, for one request at a time, because it may ask a person at a terminal. If it does not return before
its request is over, it is abandoned, and a new thread handles the next request.
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

from casemate.approvals.channels import AnswerSink, Channel, Receipt, decision_of
from casemate.model.approval import ApprovalRequest, Decision

_MOST_STUCK = 16  # threads in which the approver has not returned; with this many, it counts as unavailable
_MOST_STUCK_FOR_ONE = 3  # for one session or run, which must not use up all of them
_FAILED = "the approver failed"
Approve = Callable[[ApprovalRequest], Any]


def callback_channel(approve: Approve, sink: AnswerSink) -> Channel:
    """The channel of an approver."""
    call = getattr(approve, "__call__", None)  # noqa: B004 - an object with an async __call__
    is_async = inspect.iscoroutinefunction(approve) or inspect.iscoroutinefunction(call)
    return AsyncCallback(approve, sink) if is_async else ThreadCallback(approve, sink)


class AsyncCallback(Channel):
    """An approver that is a coroutine function. `withdraw` cancels its tasks, no later than at the end of their run."""

    name = "approve"
    is_available = True

    def __init__(self, approve: Approve, sink: AnswerSink) -> None:
        self._approve = approve
        self._sink = sink
        self._tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        self._lock = threading.Lock()
        self._wanted: set[str] = set()  # requests that need an answer

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop) -> Receipt:  # noqa: ARG002
        with self._lock:
            self._wanted.add(request.id)
        try:
            loop.call_soon_threadsafe(self._begin, request, loop)
        except RuntimeError:  # the loop is closed
            return "unavailable"
        return "shown"

    def withdraw(self, request: str) -> None:
        with self._lock:
            self._wanted.discard(request)
            loop, task = self._tasks.get(request, (None, None))
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    async def wait_closed(self, requests: set[str], seconds: float) -> None:
        """Cancel this loop's tasks for ``requests``, which were withdrawn. Wait at most ``seconds`` for them."""
        this_loop = asyncio.get_running_loop()
        with self._lock:
            self._wanted -= requests
            known = [self._tasks[request] for request in requests if request in self._tasks]
        tasks = [task for loop, task in known if loop is this_loop]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _begin(self, request: ApprovalRequest, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if request.id not in self._wanted:
                return
            task = asyncio.ensure_future(self._ask(request))  # noqa: TID251 - ended by `withdraw` and `wait_closed`
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
        except Exception as error:  # noqa: BLE001 - an exception never allows
            decision, note = Decision(reason=_FAILED), _describe(error)
        finally:
            with self._lock:
                is_wanted = request.id in self._wanted
            if decision is not None:
                self._sink.answer(request.id, decision, self.name, note)
            elif is_wanted:
                self._sink.drop_channel(self, request.id)


class ThreadCallback(Channel):
    """Any other approver. A thread cannot be ended, so answers that come too late are not used."""

    name = "approve"

    def __init__(self, approve: Approve, sink: AnswerSink) -> None:
        self._approve = approve
        self._sink = sink
        self._lock = threading.Lock()
        self._waiting: deque[tuple[ApprovalRequest, asyncio.AbstractEventLoop]] = deque()
        self._working: object = None  # the thread that takes the next request
        self._current = self._current_owner = ""  # the request that the approver handles, and its owner
        self._stuck: dict[object, str] = {}  # threads in which the approver has not returned, and their owners
        self._coroutines: dict[str, Future[Any]] = {}  # returned by the approver, by request

    @property
    def is_available(self) -> bool:
        return len(self._stuck) < _MOST_STUCK

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop) -> Receipt:  # noqa: ARG002
        with self._lock:
            stuck = sum(owner == _owner(request) for owner in self._stuck.values())
            if not self.is_available or stuck >= _MOST_STUCK_FOR_ONE:
                return "unavailable"
            self._waiting.append((request, loop))
            self._start_thread()
        return "queued"

    def withdraw(self, request: str) -> None:
        with self._lock:
            if request == self._current:
                self._stuck[self._working] = self._current_owner
                self._working, self._current = None, ""
                self._start_thread()
            elif self._waiting:
                self._waiting = deque(item for item in self._waiting if item[0].id != request)
            is_available, coroutine = self.is_available, self._coroutines.get(request)
        if coroutine is not None:
            coroutine.cancel()
        if not is_available:
            self._sink.drop_channel(self)

    def _start_thread(self) -> None:
        """Start a thread if a request waits and no thread takes it. Needs the lock."""
        if self._working is None and self._waiting and self.is_available:
            self._working = object()
            name = "casemate-approve"
            threading.Thread(target=self._work, args=(self._working,), name=name, daemon=True).start()

    def _work(self, me: object) -> None:
        while (item := self._next_request(me)) is not None:
            request, loop = item
            is_wanted = self._sink.start_timeout(request.id)
            decision, note = self._ask(request, loop) if is_wanted else (Decision(), "")
            with self._lock:
                if self._working is me:
                    self._current = ""
            if is_wanted:
                self._sink.answer(request.id, decision, self.name, note)
        with self._lock:
            self._stuck.pop(me, None)

    def _next_request(self, me: object) -> tuple[ApprovalRequest, asyncio.AbstractEventLoop] | None:
        with self._lock:
            if self._working is not me:
                return None
            if not self._waiting:
                self._working = None
                return None
            item = self._waiting.popleft()
            self._current, self._current_owner = item[0].id, _owner(item[0])
            return item

    def _ask(self, request: ApprovalRequest, loop: asyncio.AbstractEventLoop) -> tuple[Decision, str]:
        try:
            answer = self._approve(request)
            if inspect.isawaitable(answer):
                with self._lock:
                    self._coroutines[request.id] = asyncio.run_coroutine_threadsafe(_as_coroutine(answer), loop)
                answer = self._coroutines[request.id].result()
            return decision_of(answer), ""
        except BaseException as error:  # noqa: BLE001 - an exception never allows
            return Decision(reason=_FAILED), _describe(error)
        finally:
            with self._lock:
                self._coroutines.pop(request.id, None)


def _owner(request: ApprovalRequest) -> str:
    """The session, or the run if it has no session."""
    return request.session or request.run


async def _as_coroutine(answer: Any) -> object:
    return await answer


def _describe(error: BaseException) -> str:
    """Describe an error for the record. The code that asked must not learn this about the host."""
    return f"{type(error).__name__}: {error}"
