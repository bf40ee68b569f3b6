"""The service of one user: a sandbox for each namespace, until the service ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.errors import QueueFull, SandboxClosed
from casemate.execution.threads import to_thread_to_end
from casemate.operations.operations import Operations
from casemate.surfaces.http.stores import Database, KeepingChannel, KeptRequests, Results

if TYPE_CHECKING:
    from casemate.api.sandbox import Sandbox
    from casemate.execution.slots import Slots

MOST_NAMESPACES = 64  # at once
_SOON = 60.0  # seconds
_ENDED_WITHIN = 10.0  # seconds for cancelled runs to end; a step may ignore its cancellation for two
_LOOK_EVERY = 0.25  # seconds between two checks for activity
_log = logging.getLogger("casemate.service")


@dataclass(frozen=True, slots=True)
class Terms:
    drain: float = 10.0  # seconds that running runs have when the service ends
    idle_stop: float | None = None  # seconds without activity after which the service ends; None for never
    idle_timeout: float | None = 3600.0  # seconds until an unused session ends, if it was opened without a bound


@dataclass(slots=True)
class _Namespace:
    sandbox: Sandbox
    operations: Operations
    channel: KeepingChannel
    results: Results


@dataclass(slots=True)
class _Making:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made: _Namespace | None = None


class Service:
    """Runs in one event loop. ``folder``: its private state; ``make_sandbox`` makes a namespace's sandbox."""

    def __init__(self, folder: Path, make_sandbox: Callable[[str], Sandbox], terms: Terms) -> None:
        self.terms = terms
        self.connections = 0  # requests being answered, but for health and metrics
        self.is_draining = False
        self._folder = folder
        self._make_sandbox = make_sandbox
        self._database = Database(folder)
        self._requests = KeptRequests(self._database)
        self._requests.reopen()
        self._namespaces: dict[str, _Making] = {}
        self._slots: Slots | None = None  # shared by all namespaces
        self._busy_at = time.monotonic()
        self._ending = asyncio.Event()
        self._at_once = asyncio.Event()

    async def operations(self, namespace: str) -> Operations:
        """The operations of a namespace. Raises ``QueueFull`` for too many, and what making its sandbox raises."""
        making = self._namespaces.get(namespace)
        if making is None:
            self.check_takes_work()
            if len(self._namespaces) >= MOST_NAMESPACES:
                raise QueueFull(
                    f"{MOST_NAMESPACES} namespaces are in use",
                    retry_after=_SOON,
                    remediation="Use one of them.",
                )
            making = self._namespaces[namespace] = _Making()
        async with making.lock:
            if making.made is None:
                try:
                    making.made = await self._make(namespace)
                except BaseException:
                    self._namespaces.pop(namespace, None)
                    raise
            return making.made.operations

    def check_takes_work(self) -> None:
        """Raise ``SandboxClosed`` if the service is draining."""
        if self.is_draining:
            raise Ending

    def activity(self) -> dict[str, int]:
        """How many runs run or wait for an approval, and how many sessions and requests are open."""
        told = [one.made.operations.activity() for one in self._namespaces.values() if one.made is not None]
        return {
            "runs": sum(one.runs for one in told),
            "waiting": sum(one.waiting for one in told),
            "sessions": sum(one.sessions for one in told),
            "requests": self.connections,
        }

    @property
    def is_idle(self) -> bool:
        return not any(self.activity().values())

    def stop(self) -> None:
        """Start to drain: take no new work. The second call ends the service at once."""
        (self._at_once if self._ending.is_set() else self._ending).set()
        self.is_draining = True

    async def until_stopped(self) -> str:
        """Wait until the service is stopped or has been idle for long enough. Returns "told" or "idle"."""
        self._busy_at = time.monotonic()
        while not self._ending.is_set():
            now = time.monotonic()
            if not self.is_idle:
                self._busy_at = now
            elif self.terms.idle_stop is not None and now - self._busy_at >= self.terms.idle_stop:
                self.stop()
                return "idle"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._ending.wait()
        return "told"

    async def drain(self) -> None:
        """Wait for running runs, for ``drain`` seconds at most or until the second stop. Runs that wait for an approval
        do not count: they can be approved once the service runs again."""
        self.is_draining = True
        deadline = time.monotonic() + self.terms.drain
        while time.monotonic() < deadline and not self._at_once.is_set():
            told = self.activity()
            if told["runs"] <= told["waiting"]:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY / 5):
                    await self._at_once.wait()

    async def close(self) -> None:
        """End everything, and keep what each run has left and waited for. May be called again."""
        self.is_draining = True
        for making in self._namespaces.values():
            if making.made is not None:
                making.made.channel.stop()
                making.made.results.stop()
        async with asyncio.TaskGroup() as ending:
            for making in self._namespaces.values():
                ending.create_task(_close(making))
        await to_thread_to_end(self._requests.reopen)
        await to_thread_to_end(self._database.close)

    async def _make(self, namespace: str) -> _Namespace:
        from casemate.telemetry.metrics import prometheus

        prometheus()  # before the first run, so that it counts all
        sandbox = await asyncio.to_thread(self._make_sandbox, namespace)  # imports many modules
        self._slots = sandbox._slots = self._slots or sandbox._slots
        channel = KeepingChannel(self._requests, namespace, _log.error)
        sandbox.approvals.set_store(channel)
        place = self._folder / "runs" / hashlib.sha256(namespace.encode()).hexdigest()[:32]
        results = await asyncio.to_thread(Results, place, self._requests.what_it_waits_for)
        operations = Operations(sandbox, results, idle_timeout=self.terms.idle_timeout)
        try:
            await operations.load()
        except BaseException:
            await operations.close()
            await sandbox.close()
            raise
        return _Namespace(sandbox, operations, channel, results)


async def _close(making: _Making) -> None:
    async with making.lock:
        if making.made is None:
            return
        operations = making.made.operations
        try:
            await _runs_ended(operations)
            await operations.close()
        finally:
            await making.made.sandbox.close()


async def _runs_ended(operations: Operations) -> None:
    """Cancel every run before its session is closed, so that each has an outcome with what it did."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDED_WITHIN), asyncio.TaskGroup() as ending:
            for kept in operations.kept.unfinished_runs():
                if kept.going is not None:
                    ending.create_task(kept.going.cancel())
            ending.create_task(operations.idle())


class Ending(SandboxClosed):
    """The service takes no new work, and has started nothing of the request; ``reason`` tells clients."""

    reason = "ending"

    def __init__(self) -> None:
        super().__init__(
            "the service is ending and takes no new work",
            remediation="Ask again in a moment: the next command starts one.",
        )
