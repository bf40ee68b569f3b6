"""``sandbox.evidence``: signed statements about runs, and signed packs of everything known about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any

from casemate.audit.chain import Row, canonical, hash_of
from casemate.errors import NotProved, Unavailable
from casemate.evidence.statement import FILES, STATEMENT, sha256, statement_of, subjects_of
from casemate.execution.threads import to_thread_to_end

if TYPE_CHECKING:
    from casemate.audit.log import AuditLog
    from casemate.audit.reading import Audit
    from casemate.evidence.dsse import Envelope
    from casemate.model.execution import Execution


class Evidence:
    """Proves what ran in a sandbox to anyone who trusts its key. Safe to use from any thread."""

    def __init__(self, log: AuditLog, audit: Audit, namespace: str) -> None:
        self._log, self._audit, self._namespace = log, audit, namespace

    async def statement(self, run: str) -> dict[str, Any]:
        """Sign a statement about a run or step and its outcome: see :meth:`casemate.Execution.statement`.

        Args:
            run: The id of the run or step.

        Raises:
            NotFound: The record has no such run.
            Unavailable: The record is incomplete, or there is no key.
            RecordUnavailable: The record cannot be read.
        """
        return await to_thread_to_end(self.sign, run)

    async def save(self, of: str, path: str | PathLike[str], executions: Iterable[Execution] = ()) -> list[str]:
        """Write everything known about a run, or about a session and its steps, to a signed zip.

        Args:
            of: The id of a run or session.
            path: The zip. An existing file is replaced.
            executions: Outcomes whose output and files are included. For other runs only hashes are.

        Returns:
            The files that are left out, because they are no longer kept or exceed 200 MiB.

        Raises:
            NotFound: The record has no such run or session.
            NotProved: A row of the record, or a stored file, was changed.
            Unavailable: There is no key.
            RecordUnavailable: The record cannot be read.
            OSError: The zip cannot be written.
        """
        return await to_thread_to_end(self.write, of, path, executions)

    def write(
        self,
        of: str,
        path: str | PathLike[str],
        executions: Iterable[Execution],
        is_visible: Callable[[str], bool] = lambda _: True,
    ) -> list[str]:
        """Like :meth:`save`, but blocks. ``is_visible`` says whether a run, given by id, may be included."""
        from casemate.evidence.pack import write_pack

        outcomes, statements = {one.id: one for one in executions}, {}
        for run in dict.fromkeys(row.execution_id for row in self._rows(of) if row.kind == "outcome"):
            if is_visible(run):
                with suppress(Unavailable):  # it has no execution; the rows say how it ended
                    statements[run] = self.sign(run, outcomes.get(run))
        rows = [(row, canonical(row)) for row in self._rows(of) if is_visible(row.execution_id)]
        with open(path, "wb") as target:
            return write_pack(target, of, rows, statements, outcomes, self._log.signer())

    def sign(self, run: str, execution: Execution | None = None) -> Envelope:
        """Like :meth:`statement`, but blocks. ``execution`` lists all files; the record's list may be cut."""
        rows = [row for row in self._rows(run) if row.execution_id == run]
        files = None if execution is None else {one.name: one.sha256 for one in execution.artifacts}
        payload = statement_of([row for row in rows if row.kind != "signature"], files)
        envelope = self._log.signer().seal(STATEMENT, payload)
        left = {name: one for name, one in subjects_of(json.loads(payload)).items() if name.startswith(FILES)}
        signed = {"key": envelope["signatures"][0]["keyid"], "statement_sha256": sha256(payload), "artifacts": left}
        if not any(row.kind == "signature" and signed["key"] in row.detail for row in rows):
            self._log.append_if_possible("signature", run, self._namespace, signed)
        return envelope

    def _rows(self, of: str) -> list[Row]:
        rows = self._audit.rows_about(of)
        if changed := [row.sequence for row in rows if hash_of(row) != row.hash]:
            raise NotProved(f"row {changed[0]} of the record was changed: its hash does not match")
        return rows
