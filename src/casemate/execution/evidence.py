"""``sandbox.evidence``: signed statements on what ran, and packs of all that is known of it."""

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
    """What proves afterwards what ran in a sandbox, to whoever trusts its key. From any thread."""

    def __init__(self, log: AuditLog, audit: Audit, namespace: str) -> None:
        self._log, self._audit, self._namespace = log, audit, namespace

    async def statement(self, run: str) -> dict[str, Any]:
        """What a run or step was and what came of it, signed: see :meth:`casemate.Execution.statement`.

        Args:
            run: Its id.

        Raises:
            NotFound: The record has no such run.
            Unavailable: The record does not have all of it, or there is no key.
            RecordUnavailable: The record cannot be read.
        """
        return await to_thread_to_end(self.sign, run)

    async def save(self, of: str, path: str | PathLike[str], executions: Iterable[Execution] = ()) -> list[str]:
        """Write all that is known of a run, or of a session and its steps, to a zip that is signed as a whole.

        Args:
            of: The id of a run or session.
            path: The zip. What is there is replaced.
            executions: Outcomes, of which the output and the files go in, too; of others their hashes alone.

        Returns:
            Which of their files are left out, as no longer kept or beyond 200 MiB.

        Raises:
            NotFound: The record has no such run or session.
            NotProved: A row of the record, or a file that is kept, was changed.
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
        """As :meth:`save`. Blocks. ``is_visible``: by its id, whether a run may be spoken of."""
        from casemate.evidence.pack import write_pack

        outcomes, statements = {one.id: one for one in executions}, {}
        for run in dict.fromkeys(row.execution_id for row in self._rows(of) if row.kind == "outcome"):
            if is_visible(run):
                with suppress(Unavailable):  # it came to no outcome; the rows say to which end
                    statements[run] = self.sign(run, outcomes.get(run))
        rows = [(row, canonical(row)) for row in self._rows(of) if is_visible(row.execution_id)]
        with open(path, "wb") as target:
            return write_pack(target, of, rows, statements, outcomes, self._log.signer())

    def sign(self, run: str, execution: Execution | None = None) -> Envelope:
        """As :meth:`statement`. Blocks. ``execution``: its outcome, whose files are all there where the record's are
        cut."""
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
