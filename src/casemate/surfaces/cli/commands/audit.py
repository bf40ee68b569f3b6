"""``casemate audit``: what happened, newest first, and whether the record is whole."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from cyclopts import App

from casemate.surfaces.cli.answers import print_json, print_lines, print_table
from casemate.surfaces.cli.over_service.connection import PLAIN, Asked, ask

app = App(name="audit", help="Read the record of what happened, and check that it is whole.")
_COLUMNS = ("sequence", "when", "kind", "run", "detail")
_MOST_DETAIL = 120  # characters in a table; --output json has all
_BROKEN = 1  # the exit code where the record is not what it was


@app.default
@app.command(name="tail")
def tail(*, limit: int = 50, kind: str | None = None, run: str | None = None, asked: Asked = PLAIN) -> int:
    """Print the last rows of the record, the newest first.

    Parameters
    ----------
    limit
        How many; 50 unless given.
    kind
        Only rows of this kind, such as intent, outcome, decision or crossing.
    run
        Only rows of this run.
    """
    rows = ask(asked, "audit.tail", limit=limit, kind=kind, run=run)
    if asked.is_json:
        print_json(rows)
        return 0
    print_table(_COLUMNS, [_for_people(row) for row in rows], "The record has no such row.")
    return 0


@app.command
def verify(*, asked: Asked = PLAIN) -> int:
    """Check the chain of hashes of the whole record; the exit code is 1 where it is broken."""
    verdict = ask(asked, "audit.verify")
    if asked.is_json:
        print_json(verdict)
    elif verdict["ok"]:
        print_lines([f"whole: {verdict['head']['count']} rows, the last {verdict['head']['last']}"])
    else:
        print_lines([f"BROKEN at row {verdict['first_bad']}: {verdict['reason']}"])
    return 0 if verdict["ok"] else _BROKEN


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    when = datetime.fromtimestamp(row["time"]).astimezone().isoformat(sep=" ", timespec="seconds")
    detail = json.dumps(row["detail"])
    more = "..." if len(detail) > _MOST_DETAIL else ""
    return {**row, "when": when, "detail": detail[:_MOST_DETAIL] + more}
