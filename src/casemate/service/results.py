"""Where a namespace's runs are kept that are over: also those that the service did not outlive, with what there was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from casemate.execution.event_log import read_log
from casemate.model.execution import Cause, Execution, Usage
from casemate.model.isolation import IsolationReport
from casemate.operations.store import FolderStore
from casemate.operations.wire import Document, document

MOST_AGE = 7 * 24 * 3600.0  # seconds that a run is kept after its end; how many and how large, its desk says
_MOST_TEXT = 2**20  # characters of each stream of a run that ended with the service
_EVENTS = "events.jsonl"
_CODE = "service_stopped"
_NOTE = "The service ended with this run; which limits were enforced is in the audit record only."


class Results(FolderStore):
    """``waited``: what a run waited for when the service ended, in words, or empty. ``today`` gives Unix time."""

    def __init__(self, path: Path, waited: Callable[[str], str], today: Callable[[], float] = time.time) -> None:
        super().__init__(path)
        self._waited = waited
        self._today = today
        self._is_stopping = False

    def stop(self) -> None:
        """From now on what is cancelled is that because the service ends."""
        self._is_stopping = True

    def end(self, run: str, head: Document, execution: Document | None) -> None:
        """A run is over. One that the service has ended says so."""
        if execution is not None and self._is_stopping and execution["status"] == "cancelled":
            execution["cause"] = document(self._cause(run))
        super().end(run, head, execution)

    def list(self) -> list[Document]:
        """All that are kept and not too old; what never ended did so with the service that ran it."""
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
        """What there is of a run whose service was killed."""
        written: dict[str, list[str]] = {"stdout": [], "stderr": []}
        for event in _events(self.folder(head["run"]) / _EVENTS):
            if event.get("event") == "output" and event.get("stream") in written:
                written[event["stream"]].append(str(event.get("text", "")))
        stdout, stderr = "".join(written["stdout"]), "".join(written["stderr"])
        is_cut = max(len(stdout), len(stderr)) > _MOST_TEXT
        return Execution(
            id=head["run"], status="killed", exit_code=None, stdout=stdout[:_MOST_TEXT], stderr=stderr[:_MOST_TEXT],
            text=(stdout + stderr)[:_MOST_TEXT].strip(), results=(), error=None, artifacts=(), full_output=None,
            truncated=is_cut, usage=Usage(0.0, 0, 0), duration=0.0, cause=self._cause(head["run"]),
            isolation=IsolationReport("native", "shared", (), (), (), 0.0, (), notes=(_NOTE,)),
            state="lost" if head["session"] else None,
        )  # fmt: skip

    def _cause(self, run: str) -> Cause:
        waited = self._waited(run)
        if waited:
            why = f"The service was stopped while this waited for an approval: {waited}."
            what = (
                "Answer it (casemate approvals), and run the program again: an answer holds once for the same request."
            )
        else:
            why, what = "The service was stopped while this ran.", "Run it again."
        return Cause(_CODE, why, what, retryable=True)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The events that were written whole."""
    try:
        yield from read_log(path)
    except (OSError, ValueError):
        return
