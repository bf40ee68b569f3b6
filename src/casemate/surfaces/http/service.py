"""The service of one user: namespaces, each with its sandbox, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import QueueFull, SandboxClosed
from casemate.execution.threads import to_thread_to_end
from casemate.operations.operations import Operations
from casemate.surfaces.http.stores import Database, KeepingChannel, KeptRequests, Results
from casemate.version import INSTALLATION, __version__

if TYPE_CHECKING:
    from casemate.api.sandbox import Sandbox
    from casemate.execution.slots import Slots

MOST_NAMESPACES = 64  # at once
_SOON = 60.0  # seconds
_ENDED_WITHIN = 10.0  # seconds that runs have to end when they are told to; a step may ignore that for two
_LOOK_EVERY = 0.25  # seconds between two looks at whether anything lives
_log = logging.getLogger("casemate.service")

# What may still be asked of a service that ends: what tells of work, takes its results, or ends it.
_WHILE_DRAINING = frozenset({
    "runs.wait", "runs.get", "runs.read", "runs.stream", "runs.cancel", "runs.list", "sessions.list", "sessions.close",
    "sessions.interrupt", "sessions.get", "sessions.variables", "approvals.pending", "approvals.get",
    "approvals.propose", "approvals.events", "approvals.decide", "approvals.deny_all", "files.read", "files.list",
    "files.info",
    "archives.pack", "archives.drop", "artifacts.list", "artifacts.read", "audit.tail", "audit.verify", "stats",
    "evidence.pack", "evidence.statement", "inspect", "runtimes", "plans.get",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terms:
    """``drain``: seconds that running runs have when the service is told to end; ``idle_stop``: seconds without
    anything that lives after which it ends by itself, None for never; ``idle_timeout``: seconds after which a session
    ends that nobody uses and that was opened without such a bound."""

    drain: float = 10.0
    idle_stop: float | None = None
    idle_timeout: float | None = 3600.0


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
    """In one event loop. ``folder``: what it keeps, the user's alone; ``make_sandbox`` gives that of a namespace.

    Raises ``RecordUnavailable`` where what it keeps cannot be read.
    """

    def __init__(self, folder: Path, make_sandbox: Callable[[str], Sandbox], terms: Terms) -> None:
        self.terms = terms
        self.connections = 0  # requests that are being answered, but for those that only ask how it is
        self.is_draining = False
        self._folder = folder
        self._make_sandbox = make_sandbox
        self._database = Database(folder)
        self._requests = KeptRequests(self._database)
        self._requests.reopen()
        self._namespaces: dict[str, _Making] = {}
        self._slots: Slots | None = None  # of all namespaces
        self._busy_at = time.monotonic()
        self._ending = asyncio.Event()
        self._at_once = asyncio.Event()

    async def operations(self, namespace: str) -> Operations:
        """The operations of a namespace. Raises what making its sandbox raises, and ``QueueFull`` for too many."""
        making = self._namespaces.get(namespace)
        if making is None:
            if self.is_draining:
                raise Ending
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

    def check_takes(self, operation: str) -> None:
        """Whether an operation may still be asked for. Raises ``SandboxClosed`` for new work of a service that ends."""
        if self.is_draining and operation not in _WHILE_DRAINING:
            raise Ending

    def activity(self) -> dict[str, int]:
        """How many runs go on, wait for an approval, and how many sessions and requests there are."""
        told = [one.made.operations.activity() for one in self._namespaces.values() if one.made is not None]
        return {
            "runs": sum(one.runs for one in told),
            "waiting": sum(one.waiting for one in told),
            "sessions": sum(one.sessions for one in told),
            "requests": self.connections,
        }

    @property
    def is_idle(self) -> bool:
        """Whether nothing lives in it."""
        return not any(self.activity().values())

    def stop(self) -> None:
        """Begin to end: no new work, and what runs has its time. Again: end at once."""
        (self._at_once if self._ending.is_set() else self._ending).set()
        self.is_draining = True

    async def until_stopped(self) -> str:
        """Wait until somebody wants it to end, or it has been idle for long enough since; which of these."""
        self._busy_at = time.monotonic()
        while not self._ending.is_set():
            now = time.monotonic()
            if not self.is_idle:
                self._busy_at = now
            elif self.terms.idle_stop is not None and now - self._busy_at >= self.terms.idle_stop:
                self.stop()
                return "idle"
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._ending.wait()
            except TimeoutError:
                continue
        return "told"

    async def drain(self) -> None:
        """Wait until no run goes on, as long as they are given, or until somebody wants it at once. What waits for an
        approval is not waited for: it may be answered once the service runs again."""
        self.is_draining = True
        deadline = time.monotonic() + self.terms.drain
        while time.monotonic() < deadline and not self._at_once.is_set():
            told = self.activity()
            if told["runs"] <= told["waiting"]:
                return
            try:
                async with asyncio.timeout(_LOOK_EVERY / 5):
                    await self._at_once.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """End everything; what there is of each run is kept, and what it waited for. Harmless when repeated."""
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

        prometheus()  # it counts from before the first run
        sandbox = await asyncio.to_thread(self._make_sandbox, namespace)  # it loads a good deal
        self._slots = self._slots or sandbox._parts.slots
        sandbox._parts.share_slots(self._slots)
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
    """Every run that goes on is ended by itself first, so that there is an outcome with what it was until then: a
    session that is closed takes its steps along."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDED_WITHIN), asyncio.TaskGroup() as ending:
            for kept in operations.kept.unfinished_runs():
                if kept.going is not None:
                    ending.create_task(kept.going.cancel())
            ending.create_task(operations.idle())


class Ending(SandboxClosed):
    """The service takes no new work, and has begun nothing of what was asked; ``reason`` says so to clients."""

    reason = "ending"

    def __init__(self) -> None:
        super().__init__(
            "the service is ending, and takes no new work",
            remediation="Ask again in a moment: the next command starts one.",
        )


def describe(service: Service, settings: Mapping[str, str]) -> dict[str, Any]:
    """What the service tells those who may ask it anything."""
    return {
        "status": "draining" if service.is_draining else "ok",
        "version": __version__,
        "installation": INSTALLATION,
        "is_idle": service.is_idle,
        "activity": service.activity(),
        "settings": dict(settings),
    }
