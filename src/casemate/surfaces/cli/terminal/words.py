"""Casemate's own words: on stderr, apart from the program's."""

from __future__ import annotations

import sys

from casemate.errors import CasemateError, InvalidArgument
from casemate.surfaces.cli import failures


def say(message: str) -> None:
    """A line of casemate's own; what cannot be written there cannot be helped."""
    try:
        sys.stderr.write(f"casemate: {message}\n")
        sys.stderr.flush()
    except (OSError, AttributeError):
        return


def report(error: CasemateError) -> int:
    """Say what casemate could not do and what would help; the exit code."""
    from casemate.surfaces.cli.terminal.inert import inert

    message = error.message
    if isinstance(error, InvalidArgument):
        message = f"{failures.option_of(error.argument)}: {message.removeprefix(f'{error.argument}: ')}"
    say(inert("\n".join(line for line in (message, failures.remedy_of(error)) if line)))
    return failures.exit_code_of_error(error)
