"""The file of what survives the service: SQLite with a write-ahead log, one writer, all or nothing."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casemate.errors import RecordUnavailable
from casemate.remote.places import open_private

_NAME = "state.db"
_VERSION = 1
_SCHEMA = (
    """CREATE TABLE requests (
      id TEXT PRIMARY KEY, namespace TEXT NOT NULL, owner TEXT NOT NULL, run TEXT NOT NULL, hash TEXT NOT NULL,
      document TEXT NOT NULL, state TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX by_hash ON requests (namespace, owner, hash)",
)


class Database:
    """Statements, from any thread, one transaction after the other. What was written survives the end of the process,
    not necessarily that of the power (WAL with synchronous = NORMAL). Raises ``RecordUnavailable``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._lock = threading.Lock()
        os.close(open_private(folder, make=True))
        with self._told():
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._opened = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._opened.execute("PRAGMA journal_mode = WAL")
            self._opened.execute("PRAGMA synchronous = NORMAL")
            self._prepare()

    def rows(self, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """What a question gives."""
        with self._lock, self._told():
            return self._opened.execute(query, tuple(values)).fetchall()

    def write(self, *statements: tuple[str, tuple[Any, ...]]) -> int:
        """All of them or none; how many rows they have changed."""
        with self._lock, self._told(), self._transaction():
            return sum(self._opened.execute(text, values).rowcount for text, values in statements)

    def close(self) -> None:
        """Harmless when repeated."""
        with self._lock:
            self._opened.close()

    def _prepare(self) -> None:
        (version,) = self._opened.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version != 0:
            raise sqlite3.DatabaseError(f"it has version {version}, and this casemate knows version {_VERSION}")
        with self._transaction():
            for statement in _SCHEMA:
                self._opened.execute(statement)
            self._opened.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._opened.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._opened.execute("COMMIT")
        except BaseException:
            if self._opened.in_transaction:
                self._opened.execute("ROLLBACK")
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RecordUnavailable(
                f"what the service keeps in {self._path} cannot be used: {error}",
                remediation="Free some space or make it writable; or move the file away, and a new one is begun.",
            ) from error
