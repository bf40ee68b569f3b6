"""``casemate doctor`` as cyclopts reads it."""

from __future__ import annotations

from casemate.surfaces.cli.parameters import Output


def doctor(*, output: Output = "text") -> int:
    """Say what this machine can do, and what would help.

    Which walls it can have and what their self-test proved, which mechanism enforces each limit, which languages
    there are. The exit code is 0 when a wall can be had, else 69.

    Parameters
    ----------
    output
        text (unless given), or json: everything as one JSON object.
    """
    from casemate.surfaces.cli.doctor import doctor as examine

    return examine(output)
