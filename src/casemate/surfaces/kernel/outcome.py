"""Notes on a cell: errors as front ends show them, and the commands for changes that wait for review."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError
from casemate.model.execution import hidden_in_vain
from casemate.model.showing import list_first
from casemate.visible import inert, visible

if TYPE_CHECKING:
    from casemate.model.execution import Execution, ProgramError
    from casemate.sessions.session import Session

_COLOURS = re.compile(r"(\x1b\[[0-9;]{0,20}m)")
COMMANDS = re.compile(r"\s*%casemate\s+(diff|apply|discard)((?:\s+\S+)*)\s*\Z")


def notes_on(execution: Execution, *, is_loss_new: bool) -> list[str]:
    """casemate's notes on a cell, a line each."""
    notes = []
    if execution.cause is not None and (execution.error is None or execution.status != "cancelled"):
        notes.append(f"{execution.cause.message} {execution.cause.remediation}".strip())
    if is_loss_new:
        lost = list_first(execution.lost_names)
        notes.append(f"The state is lost{f': {lost}' if lost else ''}. Files are kept; the next cell starts fresh.")
    notes += [f"left out: {skipped.name}: {skipped.reason}" for skipped in execution.skipped]
    notes += hidden_in_vain(execution)
    return [visible(note) for note in notes]


def error_content(
    source: Execution | CasemateError, error: ProgramError | None = None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of an error message."""
    if isinstance(source, CasemateError):
        name, value, lines = source.kind, source.message, [source.message, source.remediation]
    elif error is not None:
        name, value, lines = error.name, error.value, [*_frames(error.traceback), *notes]
    else:
        name = "exit" if source.cause is None else source.cause.code
        value = f"its exit code is {source.exit_code}" if source.cause is None else source.cause.message
        lines = list(notes) or [value]
    return {
        "ename": visible(name),
        "evalue": inert(value),
        "traceback": [_inert_but_colours(line) for line in lines if line],
    }


def _frames(traceback: str) -> list[str]:
    """The parts of a traceback, as ipykernel sends them: two lines of head, each frame with a blank line, the error."""
    lines = traceback.rstrip("\n").split("\n")
    size = 2 if "-" * 70 in lines[0] else 0  # a rule and the kind of error
    *frames, error = "\n".join(lines[size:]).split("\n\n")
    return [*lines[:size], *(f"{frame}\n" for frame in frames), error]


def _inert_but_colours(text: str) -> str:
    """``text`` with terminal sequences made inert, except colors."""
    return "".join(part if at % 2 else inert(part) for at, part in enumerate(_COLOURS.split(text)))


async def run_command(session: Session, code: str) -> str:
    """Run ``%casemate diff``, ``apply`` or ``discard``. Returns the text to print. Raises ``CasemateError``."""
    from casemate.model.review import shown_change
    from casemate.surfaces.cli.review import outcome_lines
    from casemate.surfaces.cli.terminal import review_lines

    found = COMMANDS.match(code)
    assert found is not None
    command, paths = found[1], found[2].split()
    if command == "discard":
        await session.discard()
        return "discarded: the next cell has a fresh interpreter, and sees the folder as it is\n"
    if command == "apply":
        lines = [visible(line) for line in outcome_lines(await session.apply(paths or None))]
    else:
        changes = (await session.diff()).changes
        texts = [f"=== {one.path}\n{one.diff}" for one in changes if one.diff]
        lines = [*review_lines([*map(shown_change, changes)], "".join(texts), has_colours=False)]
    return "".join(f"{line}\n" for line in lines or ["nothing is changed"])
