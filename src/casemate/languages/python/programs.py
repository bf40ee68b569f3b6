"""What runs in cells besides Python programs: the interpreter of sessions, and the checker. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import get_args

from casemate.languages.checker import Checker
from casemate.languages.session_program import JsonProgram
from casemate.model.front_end import Task
from casemate.model.overview import Fix, Issue
from casemate.model.plan import BESIDE_PROGRAM

# A file of the user's that is called like a module of IPython's must not keep the next interpreter from starting.
_PROGRAM = b"""import sys
workspace = sys.path.pop(0)
import _casemate
_casemate.rehearses = False
from _casemate import session
sys.path.insert(0, workspace)
session.main()
"""
SESSION = JsonProgram(_PROGRAM, get_args(Task))


_COLON = re.compile(r"expected ':'")


def repair(text: str, issues: Sequence[Issue], *, has_moved: bool) -> tuple[str, list[Fix]]:
    """Indentation of the whole, tabs among spaces, and a colon that is missing where the parser says so."""
    fixes: list[Fix] = []
    if (plain := textwrap.dedent(text)) != text and text[:1] in (" ", "\t", "\n"):
        text = plain
        fixes.append(Fix("Take away the indentation of the whole", 1, "indentation"))
    if any("inconsistent use of tabs" in issue.message for issue in issues):
        text = text.expandtabs(8)
        fixes.append(Fix("Write spaces for tabs", 0, "tabs"))
    colon = next((issue for issue in issues if _COLON.match(issue.message)), None)
    if colon is not None and not has_moved and not fixes:
        lines = text.split("\n")
        if 0 < colon.line <= len(lines) and colon.column > 0:
            line = lines[colon.line - 1]
            lines[colon.line - 1] = f"{line[: colon.column - 1].rstrip()}:{line[colon.column - 1 :]}"
            text = "\n".join(lines)
            fixes.append(Fix("Write a colon at the end of what begins a block", colon.line, "colon"))
    return text, fixes


CHECKER = Checker(
    f"__file__ = __file__.rpartition('/')[0] + '/{BESIDE_PROGRAM}/check_python.py'\n"
    "exec(compile(open(__file__).read(), __file__, 'exec'))\n",
    repair=repair,
)
