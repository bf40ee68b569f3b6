"""``casemate doctor``: what this machine supports, for people and for programs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from casemate.api.sandbox import Sandbox
from casemate.errors import CasemateError
from casemate.execution.overview import examine_alone
from casemate.files.user_folders import not_ours, user_folder
from casemate.model.diagnosis import Diagnosis, LanguageState, WallState
from casemate.model.isolation import IsolationReport
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import align_columns, print_json
from casemate.surfaces.cli.failures import exit_code_of_error, remedy_of
from casemate.surfaces.cli.inert import inert, visible
from casemate.surfaces.cli.inputs import configured_arguments
from casemate.surfaces.cli.parameters import Output
from casemate.surfaces.clients.known import risky_entries

_UNAVAILABLE = 69
_WIDTH_OF_DETAIL = 60  # characters shown of a self-test case's detail


class Section(NamedTuple):
    title: str
    rows: tuple[tuple[str, ...], ...]
    heads: tuple[str, ...] = ()


def doctor(*, output: Output = "text") -> int:
    """Show what this machine supports, and what would help.

    It lists the walls that "auto" can choose with the results of their self-tests, the mechanism that enforces each
    limit, and the languages. The exit code is 0 if a wall is available, else 69. If one is available but nothing would
    run, it is 74 for a record that cannot be written, and 2 for a configuration that cannot be read.
    """
    diagnosis, refusal = _diagnose()
    diagnosis = replace(diagnosis, advice=(*diagnosis.advice, *_closed_folders(), *risky_entries(os.environ)))
    if output == "json":
        print_json(_document(diagnosis))
    elif sys.stdout.isatty():
        _print_rich(diagnosis)
    else:
        sys.stdout.write("\n".join(_plain(diagnosis)) + "\n")
    return refusal if diagnosis.ok else _UNAVAILABLE


def _diagnose() -> tuple[Diagnosis, int]:
    """The diagnosis, which needs no sandbox, and the exit code of a sandbox that cannot be made, or 0."""
    try:
        sandbox = Sandbox(**configured_arguments("audit"))
    except CasemateError as error:
        found = interrupts.run(examine_alone())
        problem = "\n".join(filter(None, (f"nothing would run: {error.message}", remedy_of(error))))
        return replace(found, advice=(*found.advice, problem)), exit_code_of_error(error)
    return interrupts.run_in(sandbox, lambda sandbox: sandbox.doctor()), 0


def _closed_folders() -> Iterator[str]:
    """Advice on the user's folders that the service cannot write in, such as a volume owned by another user."""
    for kind in ("state", "cache"):
        with contextlib.suppress(CasemateError):
            folder = user_folder(os.environ, kind, "")
            there = next(one for one in (folder, *folder.parents) if one.exists())
            if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
                yield f"The service cannot write in {folder}: {not_ours(folder) or 'its mode forbids it'}."


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    document = asdict(diagnosis)
    document["ok"] = diagnosis.ok
    for wall, state in zip(document["walls"], diagnosis.walls, strict=True):
        wall["available"] = state.available
    return document


def _sections(diagnosis: Diagnosis) -> Iterator[Section]:
    yield Section("walls", tuple(_wall(wall) for wall in diagnosis.walls), ("wall", "", ""))
    for wall in diagnosis.walls:
        if wall.report is not None:
            yield from _report_sections(wall.report)
    yield Section("languages", tuple(_language(one) for one in diagnosis.languages), ("language", "version", "where"))
    yield Section("for the web", tuple(_language(one) for one in diagnosis.web), ("", "version", "where"))
    if diagnosis.warmth.pools:
        title = "cells that a Sandbox which lives on keeps ready (casemate run does not)"
        yield Section(title, tuple(_kept_ready(diagnosis)), ("language", "", "how"))
    yield Section("free capacity of this machine", ((str(diagnosis.room),),))
    if diagnosis.advice:
        yield Section("what would help", tuple((line,) for line in diagnosis.advice))


def _wall(wall: WallState) -> tuple[str, str, str]:
    if wall.report is None:
        return wall.name, "not here", f"{wall.problem} ({wall.reason})"
    passed = sum(proof.held for proof in wall.report.proofs)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall.report.proved_at))
    return wall.name, "works", f"{passed} of {len(wall.report.proofs)} cases of the self-test held, {when}"


def _report_sections(report: IsolationReport) -> Iterator[Section]:
    name = report.wall
    proofs = tuple(
        ("held" if proof.held else "FAILED", proof.case, proof.detail[:_WIDTH_OF_DETAIL]) for proof in report.proofs
    )
    yield Section(f"{name}: the self-test", proofs, ("", "case", "what the cell saw"))
    limits = tuple(
        (one.limit, "hard" if one.hard else "best effort", one.per, "; ".join(filter(None, (one.mechanism, one.note))))
        for one in report.limits
    )
    yield Section(f"{name}: limits", limits, ("limit", "", "per", "by"))
    yield Section(f"{name}: layers", tuple((layer,) for layer in report.layers))
    if report.notes:
        yield Section(f"{name}: notes", tuple((note,) for note in report.notes))


def _language(state: LanguageState) -> tuple[str, str, str]:
    if state.missing:
        return state.language, "missing", f"{state.missing}: {state.remedy}"
    return state.language, state.version, state.path


def _kept_ready(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    for pool in diagnosis.warmth.pools:
        state, zygote = "ready" if pool.ready else "not here", pool.zygote
        if zygote is None:
            yield pool.language, state, pool.problem or "an interpreter that waits for its program"
        elif zygote.state == "ready":
            preload = f"{', '.join(zygote.preload)} where installed" if zygote.preload else "nothing preloaded"
            took = f"in {zygote.seconds or 0:.2f} s, its cells share {zygote.data >> 20} MiB"
            yield pool.language, state, f"forked from a zygote that was ready {took}: {preload}"
        else:
            yield pool.language, state, f"its zygote is {zygote.state}: {zygote.problem}"


def _plain(diagnosis: Diagnosis) -> Iterator[str]:
    yield visible(f"casemate {diagnosis.version} on {diagnosis.system}")
    for section in _sections(diagnosis):
        yield ""
        yield section.title
        if len(section.rows[0]) == 1:
            yield from (f"  {line}" for row in section.rows for line in inert(row[0]).split("\n"))
        else:
            yield from align_columns(section.rows)


def _print_rich(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(Text(visible(f"casemate {diagnosis.version} on {diagnosis.system}"), style="bold"))
    for section in _sections(diagnosis):
        console.print()
        console.print(Text(section.title, style="bold"))
        if not section.heads:
            for row in section.rows:
                console.print(Text(inert(row[0])), soft_wrap=True)  # commands in it can be copied
            continue
        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in section.heads:
            table.add_column(head)
        for row in section.rows:
            table.add_row(*(Text(visible(cell), style=_STYLES.get(cell, "")) for cell in row))
        console.print(table)


_STYLES = {
    "held": "green",
    "works": "green",
    "ready": "green",
    "hard": "green",
    "best effort": "yellow",
    "FAILED": "red",
    "not here": "red",
}
