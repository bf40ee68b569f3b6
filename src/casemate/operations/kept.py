"""The runs of a namespace: each is followed to its end, and kept for a while, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError, Fault, NotFound, QueueFull, SandboxClosed, Unavailable
from casemate.execution.event_log import EventLog
from casemate.execution.threads import to_thread_to_end
from casemate.model.approval import ApprovalRequest
from casemate.model.events import Done
from casemate.model.execution import Cause
from casemate.operations.documents import Document, document, error_document, execution_of
from casemate.operations.lookup import match_handle

if TYPE_CHECKING:
    from os import PathLike

    from casemate.model.execution import Artifact, Execution
    from casemate.model.operation import Principal
    from casemate.operations.stores import FolderStore
    from casemate.sessions.run import Run


@dataclass(slots=True)
class _Account:
    sizes: dict[str, int] = field(default_factory=dict)  # bytes by run, in the order in which they ended
    bytes: int = 0


class Retention:
    """Finished runs, by handle, in the order in which they ended."""

    def __init__(self) -> None:
        self._account_of: dict[str, str] = {}
        self._accounts: dict[str, _Account] = {}

    def add(self, run: str, account: str, size: int) -> None:
        """Add a finished run of ``account``. ``size``: its kept bytes."""
        self._account_of[run] = account
        own = self._accounts.setdefault(account, _Account())
        own.sizes[run] = size
        own.bytes += size

    def beyond(self, account: str, *, runs: int, size: int, all_runs: int) -> dict[str, int]:
        """Forget the oldest runs beyond ``all_runs`` in total, and those of an account beyond ``runs`` or ``size``
        bytes, except its newest. Returns their sizes by run."""
        forgotten: dict[str, int] = {}
        while len(self._account_of) > all_runs:
            forgotten |= self._forget_run(next(iter(self._account_of)))
        own = self._accounts.get(account)
        while own and len(own.sizes) > 1 and (len(own.sizes) > runs or own.bytes > size):
            forgotten |= self._forget_run(next(iter(own.sizes)))
        return forgotten

    def resize(self, run: str, size: int) -> None:
        """Set the bytes that are kept of a run, if it is not forgotten."""
        if run in self._account_of:
            own = self._accounts[self._account_of[run]]
            own.bytes += size - own.sizes[run]
            own.sizes[run] = size

    def forget(self, run: str) -> None:
        """Forget a run, if it is kept."""
        if run in self._account_of:
            self._forget_run(run)

    def _forget_run(self, run: str) -> dict[str, int]:
        account = self._account_of.pop(run)
        own = self._accounts[account]
        size = own.sizes.pop(run)
        own.bytes -= size
        if not own.sizes:
            del self._accounts[account]
        return {run: size}


MOST_KEPT = 200  # finished runs of one caller
MOST_KEPT_BYTES = 2 << 30  # of the events and files of one caller's runs
MOST_GOING = 200  # unfinished runs of one account
_SOON = 5.0  # seconds
_MOST_ALL = 2000  # finished runs of all callers
_LOADED = 32  # executions in memory
_SMALL = 1 << 16  # characters of an execution that is stored without a thread
_MOST_LOADED = 4 << 20  # characters of an execution that is kept in memory
_UNWANTED = 20  # runs that are dropped together
_EVENTS = "events.jsonl"
_UNTIL_SENT = 2  # turns of the loop that send a step; its files are made while it runs
_INTERRUPTED = "casemate was ended while it ran"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The content of a file that is kept with its run."""

    path: Path

    def read_bytes(self) -> bytes:
        """The whole content. Raises ``OSError`` if its run is no longer kept."""
        return self.path.read_bytes()

    def save(self, path: str | PathLike[str]) -> None:
        """Copy it to ``path``. Raises ``OSError``."""
        import shutil

        shutil.copyfile(self.path, path)


@dataclass(slots=True, eq=False)
class StoredRun:
    head: Document  # what is known of it, without its execution
    log: EventLog | None
    going: Run | None = None  # until it is over
    asked: list[str] = field(default_factory=list)  # ids of its approval requests
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, on each change
    follower: asyncio.Task[None] | None = None

    @property
    def run(self) -> str:
        return str(self.head["run"])

    @property
    def owner(self) -> str:
        return str(self.head["owner"])

    @property
    def payer(self) -> str:
        return str(self.head.get("account") or self.owner)

    @property
    def is_done(self) -> bool:
        return bool(self.head["is_done"])

    def tell(self) -> None:
        """Wake all that wait for a change."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class KeptRuns:
    """Runs by handle, which is the id of their execution. ``store`` keeps the finished ones."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._runs: dict[str, StoredRun] = {}
        self._going: dict[str, StoredRun] = {}  # the unfinished ones
        self._unwanted: list[str] = []  # forgotten runs that are still in the store
        self._retention = Retention()
        self._loaded: dict[str, Execution] = {}
        self._is_closed = False

    async def load(self) -> None:
        """Load what an earlier process left in the store."""
        for head in await asyncio.to_thread(self._store.list):
            if not head["is_done"]:
                lost = error_document(SandboxClosed(_INTERRUPTED))
                head |= {"is_done": True, "error": lost, "ended": time.time()}
                await asyncio.to_thread(self._store.end, head["run"], head, None)
            run = self._runs[head["run"]] = StoredRun(head, None)
            await self._over(run)

    async def add(
        self, begin: Callable[[], Run], principal: Principal, session: str | None, language: str
    ) -> StoredRun:
        """Start a run of ``principal``, and follow it. Raises ``QueueFull``, and what ``begin`` raises."""
        self.check_open()
        if sum(one.payer == principal.payer for one in self._going.values()) >= MOST_GOING:
            raise QueueFull(
                f"{MOST_GOING} runs of {principal.payer!r} go on already", retry_after=_SOON,
                remediation="Wait for some of them, or cancel some.",
            )  # fmt: skip
        going = begin()
        head: Document = {
            "run": going.id, "owner": principal.name, "account": principal.payer, "session": session,
            "language": language, "started": time.time(), "ended": None, "is_done": False,
            "outcome": None, "error": None, "bytes": 0, "installation": sys.prefix,
        }  # fmt: skip
        kept = self._going[going.id] = StoredRun(head, None, going)
        kept.follower = asyncio.ensure_future(self._follow(kept, going))  # noqa: TID251 - ended by `close`
        try:
            for _ in range(_UNTIL_SENT):
                await asyncio.sleep(0)
            self._keep_events(kept, going)  # as fast as handing it to a thread
        except BaseException as error:
            await going.cancel()
            if isinstance(error, OSError):
                raise Unavailable(f"the run cannot be kept: {error.strerror or error}") from None
            raise
        return kept

    def _keep_events(self, kept: StoredRun, going: Run) -> EventLog:
        """Move its event log into the store, if needed; the run can be found from then on. Raises ``OSError``."""
        if kept.log is None:
            folder = self._store.begin(kept.run, kept.head)
            try:
                going.log.keep_at(folder / _EVENTS)
            except OSError:
                self._store.drop(kept.run)
                raise
            kept.log = going.log
            self._runs[kept.run] = kept
        return kept.log

    def find(self, run: str, principal: Principal) -> StoredRun:
        """The run with this handle, or the only one whose handle starts with it. Raises ``NotFound``, also for another
        caller's, and ``InvalidArgument`` if several start with it."""
        kept = self._runs.get(run)
        if kept is None or not principal.may_see(kept.owner):
            found = match_handle(run, (one.run for one in self.of(principal)), "run", "runs")
            if found is None:
                raise NotFound("run", f"there is no run {run[:100]!r}, or it is no longer kept")
            kept = self._runs[found]
        return kept

    def of(self, principal: Principal) -> Iterator[StoredRun]:
        """The runs that ``principal`` may see, oldest first."""
        return (kept for kept in list(self._runs.values()) if principal.may_see(kept.owner))

    def unfinished_runs(self) -> list[StoredRun]:
        """The unfinished runs of all callers."""
        return list(self._going.values())

    async def log_of(self, kept: StoredRun) -> EventLog:
        """Its events. Raises ``NotFound`` if they are not kept any more."""
        if kept.log is None:
            path, is_step = self._store.folder(kept.run) / _EVENTS, kept.head["session"] is not None
            try:
                kept.log = await asyncio.to_thread(EventLog.reopen, path, is_step=is_step)
            except (OSError, ValueError):
                raise NotFound("run", f"the events of run {kept.run!r} are no longer kept") from None
        return kept.log

    async def execution(self, kept: StoredRun) -> Execution | None:
        """Its outcome; None if it is not over, or has none."""
        if not kept.is_done or kept.head["error"] is not None:
            return None
        if (loaded := self._loaded.get(kept.run)) is None:
            source = await asyncio.to_thread(self._store.execution, kept.run)
            if source is None:
                return None
            loaded = self._remember(execution_of(source, lambda run, name: self._file(run, source, name)))
        return loaded

    async def files_of(self, run: str, principal: Principal) -> tuple[Artifact, ...]:
        """The files that a run left, with contents. Raises ``NotFound``."""
        execution = await self.execution(self.find(run, principal))
        if execution is None:
            return ()
        return (*execution.artifacts, *([execution.full_output] if execution.full_output else []))

    async def file(self, run: str, name: str, principal: Principal) -> Artifact:
        """A file that a run left, or its full output. Raises ``NotFound``."""
        for artifact in await self.files_of(run, principal):
            if artifact.name == name:
                return artifact
        raise NotFound("path", f"the run has left no file {name[:200]!r}")

    def _file(self, run: str, execution: Document, name: str) -> StoredFile:
        return StoredFile(self._store.folder(run) / f"file-{_names(execution).index(name)}")

    def _remember(self, execution: Execution) -> Execution:
        if _length(execution) <= _MOST_LOADED:
            self._loaded[execution.id] = execution
        while len(self._loaded) > _LOADED:
            self._loaded.pop(next(iter(self._loaded)))
        return execution

    async def _follow(self, kept: StoredRun, going: Run) -> None:
        """Follow a run to its end, and store it."""
        execution: Execution | None = None
        error: CasemateError | None = None
        try:
            async with contextlib.aclosing(going.stream()) as events:
                async for event in events:
                    if isinstance(event, Done):
                        break
                    self._keep_events(kept, going)
                    if isinstance(event, ApprovalRequest):
                        kept.asked.append(event.id)
                    kept.tell()
            execution = await going.wait()
        except CasemateError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - on any failure the run ends, for it is not followed any more
            await going.cancel()
            words = f"its events cannot be kept: {getattr(raised, 'strerror', None) or raised}"
            error = Unavailable(words) if isinstance(raised, OSError) else Fault(words)
        finally:
            chars = 0
            with contextlib.suppress(OSError):
                chars = self._keep_events(kept, going).chars
            kept.head |= {"outcome": execution.status if execution else None, "ended": time.time(), "chars": chars}
            await self._end(kept, execution, error or (None if execution else Fault("the run has no outcome")))
            going.forget()
            kept.going = None
            kept.head["is_done"] = True
            del self._going[kept.run]
            kept.tell()
            await self._over(kept)

    async def _end(self, kept: StoredRun, execution: Execution | None, error: CasemateError | None) -> None:
        if execution is not None:
            try:
                is_small = not execution.artifacts and not execution.full_output and _length(execution) <= _SMALL
                work = partial(self._with_stored_contents, kept.head, execution, kept.log.size if kept.log else 0)
                self._remember(work() if is_small else await to_thread_to_end(work))
                return
            except OSError as failed:
                error = Unavailable(f"its outcome cannot be kept: {failed.strerror or failed}")
        kept.head["error"] = error_document(error) if error else None
        with contextlib.suppress(OSError):
            await to_thread_to_end(self._store.end, kept.run, {**kept.head, "is_done": True}, None)

    def _with_stored_contents(self, head: Document, execution: Execution, events: int) -> Execution:
        """Store an execution and its files; returns it with contents in the store. ``events``: their bytes."""
        source = document(execution)
        folder = self._store.folder(execution.id)
        files = [*execution.artifacts, *([execution.full_output] if execution.full_output else [])]
        try:
            for number, artifact in enumerate(files):
                artifact.save(folder / f"file-{number}")
        except OSError:
            for number in range(len(files)):  # an incomplete set is useless, and would count for no account
                (folder / f"file-{number}").unlink(missing_ok=True)
            raise
        head["bytes"] = sum(one.size for one in files) + events
        self._store.end(execution.id, {**head, "is_done": True}, source)
        if not files and source["cause"] is None:
            return execution
        files_in_store = [
            replace(one, content=StoredFile(folder / f"file-{number}")) for number, one in enumerate(files)
        ]
        return replace(
            execution,
            cause=Cause(**source["cause"]) if source["cause"] else None,  # the store's `end` may have set it
            artifacts=tuple(files_in_store[: len(execution.artifacts)]),
            full_output=files_in_store[-1] if execution.full_output else None,
        )

    async def _over(self, kept: StoredRun) -> None:
        """Count a finished run, and forget what is beyond the bounds of its account and of all."""
        if kept.run not in self._runs:
            return
        self._retention.add(kept.run, kept.payer, int(kept.head["bytes"]))
        forgotten = self._retention.beyond(kept.payer, runs=MOST_KEPT, size=MOST_KEPT_BYTES, all_runs=_MOST_ALL)
        for run in forgotten:
            self._runs.pop(run, None)
            self._loaded.pop(run, None)
            self._unwanted.append(run)
        if len(self._unwanted) >= _UNWANTED or sum(forgotten.values()) > _SMALL:
            unwanted, self._unwanted = self._unwanted, []
            await to_thread_to_end(self._drop, unwanted)

    def _drop(self, runs: list[str]) -> None:
        for run in runs:
            self._store.drop(run)

    def check_open(self) -> None:
        """Raises ``SandboxClosed``."""
        if self._is_closed:
            raise SandboxClosed("the sandbox was closed")

    def stop_accepting(self) -> None:
        """Start no more runs."""
        self._is_closed = True

    async def close(self) -> None:
        """End all runs, and close the store."""
        self.stop_accepting()
        all_runs = [*self._runs.values(), *self._going.values()]
        for kept in all_runs:
            if kept.going is not None:
                await kept.going.cancel()
        if followers := {kept.follower for kept in all_runs if kept.follower}:
            await asyncio.wait(followers)
        await to_thread_to_end(self._drop, self._unwanted)
        await to_thread_to_end(self._store.close)


def _length(execution: Execution) -> int:
    """About how many characters it has."""
    result_chars = sum(len(str(one)) for result in execution.results for one in result.values())
    return len(execution.stdout) + len(execution.stderr) + len(execution.text) + result_chars


def _names(execution: Document) -> list[Any]:
    names = [one["name"] for one in execution["artifacts"]]
    return [*names, *([execution["full_output"]["name"]] if execution["full_output"] else [])]
