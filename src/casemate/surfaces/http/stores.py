"""Approval requests and runs of each namespace, on disk, so that they outlive the service.

A request is *asked* while its cell waits. When the service ends, the cell dies and the request is *open*: it is listed
and can be answered. An *allowed* request lets the same caller make exactly the same request once, without asking again.
Everything expires.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.audit.database import transaction
from casemate.errors import RecordUnavailable
from casemate.execution.event_log import read_log
from casemate.model.approval import ApprovalRequest, Decision
from casemate.model.events import request_of
from casemate.model.execution import Cause, Execution, Usage
from casemate.model.isolation import IsolationReport
from casemate.operations.documents import Document, document
from casemate.operations.stores import FolderStore
from casemate.remote.places import open_private

if TYPE_CHECKING:
    from casemate.approvals.channels import AnswerSink, Receipt

_NAME = "state.db"
_VERSION = 1
_SCHEMA = (
    """CREATE TABLE requests (
      id TEXT PRIMARY KEY, namespace TEXT NOT NULL, owner TEXT NOT NULL, run TEXT NOT NULL, hash TEXT NOT NULL,
      document TEXT NOT NULL, state TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX by_hash ON requests (namespace, owner, hash)",
)


class Database:
    """Runs transactions one at a time, from any thread. What was written survives the end of the process, but not
    necessarily a power failure (WAL with synchronous = NORMAL). Raises ``RecordUnavailable``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._lock = threading.Lock()
        os.close(open_private(folder, make=True))
        with self._translate_errors():
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._opened = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._opened.execute("PRAGMA journal_mode = WAL")
            self._opened.execute("PRAGMA synchronous = NORMAL")
            self._prepare()

    def rows(self, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._lock, self._translate_errors():
            return self._opened.execute(query, tuple(values)).fetchall()

    def write(self, *statements: tuple[str, tuple[Any, ...]]) -> int:
        """Execute all statements or none. Returns how many rows they changed."""
        with self._lock, self._translate_errors(), transaction(self._opened, "BEGIN IMMEDIATE"):
            return sum(self._opened.execute(text, values).rowcount for text, values in statements)

    def close(self) -> None:
        with self._lock:
            self._opened.close()

    def _prepare(self) -> None:
        (version,) = self._opened.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version != 0:
            raise sqlite3.DatabaseError(f"it has version {version}, but this casemate supports version {_VERSION}")
        with transaction(self._opened, "BEGIN IMMEDIATE"):
            for statement in _SCHEMA:
                self._opened.execute(statement)
            self._opened.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RecordUnavailable(
                f"the service's state in {self._path} cannot be used: {error}",
                remediation="Free some space or make it writable; or move the file away, and a new one is made.",
            ) from error


OPEN_FOR = 24 * 3600.0  # seconds after the service ended in which an open request can be answered
HOLDS_FOR = 3600.0  # seconds after the answer in which an allowed request can be used
_MOST = 1000  # open and allowed requests of all namespaces; the oldest go first
_MOST_BYTES = 256 * 1024  # of one request


class KeptRequests:
    """Kept approval requests, for use from any thread. ``today`` gives Unix time. Raises ``RecordUnavailable``."""

    def __init__(self, database: Database, today: Callable[[], float] = time.time) -> None:
        self._database = database
        self._today = today

    def keep_request(self, owner: str, document: dict[str, Any]) -> None:
        """Keep a request whose cell waits for the answer."""
        text = json.dumps(document)
        if len(text) > _MOST_BYTES:
            return  # too large to keep: it is lost with its cell
        values = (document["id"], document["namespace"], owner, document["run"], document["hash"], text)
        self._database.write(
            ("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, 'asked', 0)", values),
        )

    def over(self, request: str) -> None:
        """Drop a request that was answered or is no longer needed."""
        self._database.write(("DELETE FROM requests WHERE id = ? AND state = 'asked'", (request,)))

    def reopen(self) -> None:
        """Open all asked requests: their cells died with the service. Drop those that are too old, or too many."""
        now = self._today()
        self._database.write(
            ("UPDATE requests SET state = 'open', until = ? WHERE state = 'asked'", (now + OPEN_FOR,)),
            ("DELETE FROM requests WHERE until <= ?", (now,)),
            ("DELETE FROM requests WHERE id NOT IN (SELECT id FROM requests ORDER BY until DESC LIMIT ?)", (_MOST,)),
        )

    def open(self, namespace: str) -> list[Document]:
        rows = self._database.rows(
            "SELECT document FROM requests WHERE namespace = ? AND state = 'open' AND until > ? ORDER BY until, id",
            (namespace, self._today()),
        )
        return [json.loads(row[0]) for row in rows]

    def answer(self, request: str, namespace: str, *, allow: bool) -> bool:
        """Answer an open request. False if it is unknown, expired, or already answered."""
        given = (request, namespace, self._today())
        which = "WHERE id = ? AND namespace = ? AND state = 'open' AND until > ?"
        if not allow:
            return self._database.write((f"DELETE FROM requests {which}", given)) > 0  # noqa: S608
        until = self._today() + HOLDS_FOR
        changed = (f"UPDATE requests SET state = 'allowed', until = ? {which}", (until, *given))  # noqa: S608
        return self._database.write(changed) > 0

    def redeem(self, namespace: str, owner: str, shown: str) -> bool:
        """Use up an allowance of ``owner`` for the request with the hash ``shown``, on disk. False if there is none."""
        one = (
            "DELETE FROM requests WHERE id = (SELECT id FROM requests WHERE namespace = ? AND owner = ? AND hash = ?"
            " AND state = 'allowed' AND until > ? LIMIT 1)"
        )
        return self._database.write((one, (namespace, owner, shown, self._today()))) == 1

    def what_it_waits_for(self, run: str) -> str:
        """Summary of what a run waits or waited for; empty if it waits for nothing."""
        rows = self._database.rows("SELECT document FROM requests WHERE run = ? LIMIT 1", (run,))
        return str(json.loads(rows[0][0]).get("summary", "")) if rows else ""


class KeepingChannel:
    """Keeps each request on disk before it counts as shown, and deletes it once answered. Answers at once what was
    allowed beforehand. Implements :class:`casemate.approvals.channels.RequestStore` for one namespace."""

    name = "kept"

    def __init__(self, kept: KeptRequests, namespace: str, note: Callable[[str], None] = lambda _: None) -> None:
        """``note``: called with each error message."""
        self._kept = kept
        self._namespace = namespace
        self._note = note
        self._sink: AnswerSink | None = None
        self._is_stopping = False

    @property
    def is_available(self) -> bool:
        return True

    def connect(self, sink: AnswerSink) -> None:
        self._sink = sink

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop) -> Receipt:  # noqa: ARG002
        """Keep the request; "unavailable" if that fails, so that nothing is promised."""
        try:
            if not request.caller:  # without a caller, nothing can ask the same again
                return "shown"
            if self._kept.redeem(self._namespace, request.caller, request.hash):
                assert self._sink is not None
                reason = "allowed beforehand, for a request made before the service was stopped"
                self._sink.answer(request.id, Decision(True, reason=reason), self.name)
                return "shown"
            self._kept.keep_request(request.caller, document(request))
        except RecordUnavailable as error:
            self._note(error.message)
            return "unavailable"
        return "shown"

    def withdraw(self, request: str) -> None:
        """Drop a request that was answered or whose cell ended, unless it ends because the service does."""
        if self._is_stopping:
            return
        try:
            self._kept.over(request)
        except RecordUnavailable as error:
            self._note(error.message)

    async def wait_closed(self, requests: set[str], seconds: float) -> None:
        """Do nothing: no callback is running."""

    def stop(self) -> None:
        """Keep the requests that end from now on: they end because the service does."""
        self._is_stopping = True

    def list_withdrawn(self) -> list[ApprovalRequest]:
        """Requests that can be answered although their cells are gone, with the state "withdrawn"."""
        return [
            request_of({**one, "state": "withdrawn"}, lambda request: partial(self.decide, request))
            for one in self._kept.open(self._namespace)
        ]

    def decide(self, request: str, decision: Decision) -> bool:
        """Answer one of these. It holds once, for the same request of the same caller, regardless of its scope."""
        return self._kept.answer(request, self._namespace, allow=decision.allow is True)


MOST_AGE = 7 * 24 * 3600.0  # seconds that a run is kept after its end; the operations bound number and size
_MOST_TEXT = 2**20  # characters of each stream of a run that ended with the service
_EVENTS = "events.jsonl"
_CODE = "service_stopped"
_NOTE = "The service ended with this run; the enforced limits are in the audit record only."


class Results(FolderStore):
    """``waited``: summary of what a run waited for when the service ended, or empty. ``today`` gives Unix time."""

    def __init__(self, path: Path, waited: Callable[[str], str], today: Callable[[], float] = time.time) -> None:
        super().__init__(path)
        self._waited = waited
        self._today = today
        self._is_stopping = False

    def stop(self) -> None:
        """Treat cancelled runs from now on as ended by the service."""
        self._is_stopping = True

    def end(self, run: str, head: Document, execution: Document | None) -> None:
        """Keep the outcome of a run. If the service ended it, its cause says so."""
        if execution is not None and self._is_stopping and execution["status"] == "cancelled":
            execution["cause"] = document(self._cause(run))
        super().end(run, head, execution)

    def list(self) -> list[Document]:
        """All kept runs that are not too old. Runs without an end were killed with the service."""
        kept = []
        for head in super().list():
            if (head["ended"] or head["started"]) < self._today() - MOST_AGE:
                self.drop(head["run"])
                continue
            if not head["is_done"]:
                head |= {"is_done": True, "outcome": "killed", "ended": self._today(), "error": None}
                super().end(head["run"], head, document(self._rest_of(head)))
            kept.append(head)
        return kept

    def _rest_of(self, head: Document) -> Execution:
        written: dict[str, list[str]] = {"stdout": [], "stderr": []}
        with suppress(OSError, ValueError):  # up to the first damaged event
            for event in read_log(self.folder(head["run"]) / _EVENTS):
                if event.get("event") == "output" and event.get("stream") in written:
                    written[event["stream"]].append(str(event.get("text", "")))
        stdout, stderr = "".join(written["stdout"]), "".join(written["stderr"])
        is_cut = max(len(stdout), len(stderr)) > _MOST_TEXT
        return Execution(
            id=head["run"], status="killed", exit_code=None, stdout=stdout[:_MOST_TEXT], stderr=stderr[:_MOST_TEXT],
            text=(stdout + stderr)[:_MOST_TEXT].strip(), results=(), error=None, artifacts=(), full_output=None,
            truncated=is_cut, usage=Usage(0.0, 0, 0), duration=0.0, cause=self._cause(head["run"]),
            isolation=IsolationReport("unknown", "shared", (), (), (), 0.0, (), notes=(_NOTE,)),
            state="lost" if head["session"] else None,
        )  # fmt: skip

    def _cause(self, run: str) -> Cause:
        waited = self._waited(run)
        if waited:
            why = f"The service was stopped while this run waited for an approval: {waited}."
            what = (
                "Answer it (casemate approvals), and run the program again: an answer holds once for the same request."
            )
        else:
            why, what = "The service was stopped during this run.", "Run it again."
        return Cause(_CODE, why, what, retryable=True)
