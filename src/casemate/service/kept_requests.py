"""Requests for approval that outlive what asked: on disk while somebody may answer, and an answer holds once.

A request is *asked* while its cell waits. When the service ends, or is ended, the cell dies and the request is *open*:
it is listed, and can be answered. Allowed, it waits for exactly the same to be asked again by the same caller, which is
then allowed without asking, once. Everything expires.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casemate.service.database import Database

OPEN_FOR = 24 * 3600.0  # seconds after the service ended, in which an open request can be answered
HOLDS_FOR = 3600.0  # seconds after the answer, in which an allowed one may be used
_MOST = 1000  # open and allowed ones of all namespaces together; the oldest go first
_MOST_BYTES = 256 * 1024  # of one


@dataclass(frozen=True, slots=True)
class Kept:
    """A request that its cell did not outlive. ``document``: what was shown of it; ``until``: Unix seconds."""

    id: str
    namespace: str
    owner: str
    hash: str
    document: dict[str, Any]
    state: str
    until: float


class KeptRequests:
    """From any thread. ``today`` gives Unix time. Raises ``RecordUnavailable``."""

    def __init__(self, database: Database, today: Callable[[], float] = time.time) -> None:
        self._database = database
        self._today = today

    def asked(self, owner: str, document: dict[str, Any]) -> None:
        """A cell waits for this answer."""
        text = json.dumps(document)
        if len(text) > _MOST_BYTES:
            return  # what is too large to be kept is gone with its cell
        values = (document["id"], document["namespace"], owner, document["run"], document["hash"], text)
        self._database.write(
            ("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, 'asked', 0)", values),
        )

    def over(self, request: str) -> None:
        """It was answered, or nobody needs an answer any more."""
        self._database.write(("DELETE FROM requests WHERE id = ? AND state = 'asked'", (request,)))

    def reopen(self) -> None:
        """The cells of all that were asked have died with the service."""
        until = self._today() + OPEN_FOR
        self._database.write(("UPDATE requests SET state = 'open', until = ? WHERE state = 'asked'", (until,)))
        self._trim()

    def open(self, namespace: str, owner: str | None = None) -> list[Kept]:
        """Those that can be answered; of one owner, or of all in the namespace."""
        rows = self._database.rows(
            "SELECT id, namespace, owner, hash, document, state, until FROM requests"
            " WHERE namespace = ? AND state = 'open' AND until > ? ORDER BY until, id",
            (namespace, self._today()),
        )
        kept = [Kept(r[0], r[1], r[2], r[3], json.loads(r[4]), r[5], r[6]) for r in rows]
        return [one for one in kept if owner is None or one.owner == owner]

    def answer(self, request: str, namespace: str, *, allow: bool, owner: str | None = None) -> bool:
        """Answer an open one; whether there was such a one that could be answered."""
        given: tuple[Any, ...] = (request, namespace, self._today())
        whose, more = ("", ()) if owner is None else (" AND owner = ?", (owner,))
        which = f"WHERE id = ? AND namespace = ? AND state = 'open' AND until > ?{whose}"
        if not allow:
            return self._database.write((f"DELETE FROM requests {which}", (*given, *more))) > 0  # noqa: S608
        until = self._today() + HOLDS_FOR
        changed = (f"UPDATE requests SET state = 'allowed', until = ? {which}", (until, *given, *more))  # noqa: S608
        return self._database.write(changed) > 0

    def redeem(self, namespace: str, owner: str, shown: str) -> bool:
        """Whether exactly what has the hash ``shown`` was allowed to ``owner`` beforehand: then it is used up, on disk,
        before this returns."""
        one = (
            "DELETE FROM requests WHERE id = (SELECT id FROM requests WHERE namespace = ? AND owner = ? AND hash = ?"
            " AND state = 'allowed' AND until > ? LIMIT 1)"
        )
        return self._database.write((one, (namespace, owner, shown, self._today()))) == 1

    def waited(self, run: str) -> str:
        """What a run waits or waited for, in words; empty where it waits for nothing."""
        rows = self._database.rows("SELECT document FROM requests WHERE run = ? LIMIT 1", (run,))
        return str(json.loads(rows[0][0]).get("summary", "")) if rows else ""

    def _trim(self) -> None:
        self._database.write(
            ("DELETE FROM requests WHERE state != 'asked' AND until <= ?", (self._today(),)),
            (
                "DELETE FROM requests WHERE state != 'asked' AND id NOT IN"
                " (SELECT id FROM requests WHERE state != 'asked' ORDER BY until DESC LIMIT ?)",
                (_MOST,),
            ),
        )
