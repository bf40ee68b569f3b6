"""The same sandbox without ``await``: for scripts, notebooks and running event loops.

    from casemate.sync import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("print(2 + 2)").stdout)

Each sandbox has an event loop of its own in a thread of its own, so it also works where a
loop is running already.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from casemate import sandbox as asynchronous
from casemate.errors import SandboxClosed
from casemate.model.diagnosis import Diagnosis
from casemate.model.events import Event
from casemate.model.execution import Execution
from casemate.model.plan import Plan

T = TypeVar("T")
_JOIN_TIMEOUT = 10.0  # seconds the loop's thread has to end


class Sandbox:
    """``casemate.Sandbox`` with blocking methods; arguments, results and errors are the same."""

    def __init__(self, **arguments: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="casemate-sync", daemon=True)
        try:
            self._sandbox = asynchronous.Sandbox(**arguments)
        except BaseException:
            self._loop.close()
            raise
        self._thread.start()

    def run(self, code: str | bytes, **arguments: Any) -> Execution:
        """See :meth:`casemate.Sandbox.run`. An interrupt (Ctrl-C) ends the cell."""
        return self._wait(self._sandbox.run(code, **arguments))

    def stream(self, code: str | bytes, **arguments: Any) -> Iterator[Event]:
        """See :meth:`casemate.Sandbox.stream`. Leaving the loop early ends the cell."""
        events = self._sandbox.stream(code, **arguments)
        try:
            while True:
                event: Event | None = self._wait(anext(events, None))
                if event is None:
                    return
                yield event
        finally:
            self._wait(events.aclose())

    def explain(self, code: str | bytes, **arguments: Any) -> Plan:
        """See :meth:`casemate.Sandbox.explain`."""
        return self._wait(self._sandbox.explain(code, **arguments))

    def doctor(self) -> Diagnosis:
        """See :meth:`casemate.Sandbox.doctor`."""
        return self._wait(self._sandbox.doctor())

    @staticmethod
    def language_of(file_name: str) -> str | None:
        """See :meth:`casemate.Sandbox.language_of`."""
        return asynchronous.Sandbox.language_of(file_name)

    def warm_up(self, *languages: str) -> None:
        """See :meth:`casemate.Sandbox.warm_up`."""
        self._sandbox.warm_up(*languages)

    def close(self) -> None:
        """End every cell and the sandbox's own thread. Harmless when repeated."""
        if self._loop.is_closed():
            return
        self._wait(self._sandbox.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T] | Any) -> T:
        if self._loop.is_closed():
            coroutine.close()
            raise SandboxClosed("the sandbox was closed")
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(coroutine), self._loop)
        try:
            result: T = future.result()
        except BaseException:
            future.cancel()
            raise
        return result


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable
