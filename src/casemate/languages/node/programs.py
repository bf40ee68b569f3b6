"""What runs in cells besides Node programs: the interpreter of sessions, and the checker. Pure."""

from __future__ import annotations

from casemate.languages.checker import Checker
from casemate.languages.session_program import JsonProgram
from casemate.model.plan import BESIDE_PROGRAM

SESSION = JsonProgram(f"require('{BESIDE_PROGRAM}/node_session.cjs')\n".encode())


_HINTS = (
    (r"(?<![\w.])eval\s*\(", "dangerous-eval", "eval() runs whatever text it is given"),
    (r"\bnew\s+Function\s*\(", "dangerous-eval", "new Function() runs whatever text it is given"),
    (r"\bexec(?:Sync)?\s*\(\s*[`'\"]", "dangerous-shell", "exec() has a shell read its text"),
    (r"\bshell\s*:\s*true\b", "dangerous-shell", "a shell reads what it is given"),
    (r"\brm(?:Sync)?\s*\(\s*['\"`](?:/|~)['\"`]", "dangerous-remove", "this removes everything that it can"),
)

CHECKER = Checker(f"require('{BESIDE_PROGRAM}/check_node.cjs');\n", _HINTS)
