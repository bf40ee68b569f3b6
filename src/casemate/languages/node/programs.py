"""What else runs in cells for Node: the interpreter of sessions, and the checker."""

from __future__ import annotations

from casemate.languages.checker import Checker, Harm
from casemate.languages.session_program import JsonProgram
from casemate.model.plan import BESIDE_PROGRAM

SESSION = JsonProgram(f"require('{BESIDE_PROGRAM}/node_session.cjs')\n".encode(), ("code", "look_up"))


_HINTS = (
    Harm("eval(), Function(), vm", "dangerous-eval", "this runs any text it is given",
         r"""(?<![\w.])(?:eval|Function)\s*\(|['"`](?:node:)?vm['"`]"""),
    Harm("child_process", "dangerous-process", "this starts programs", r"\bchild_process\b"),
    Harm("exec('text'), shell: true", "dangerous-shell", "a shell runs the text",
         r"""\bexec(?:Sync)?\s*\(\s*[`'"]|\bshell\s*:\s*true\b"""),
    Harm("process.kill()", "dangerous-kill", "this ends a process", r"\bprocess\s*\.\s*kill\s*\("),
    Harm("process.exit(), process.abort()", "dangerous-exit", "this ends the program at once",
         r"\bprocess\s*\.\s*(?:exit|abort|reallyExit)\s*\("),
    Harm("fs.rm(), fs.rmdir(), fs.unlink(), and with Sync", "dangerous-remove", "this removes files or folders",
         r"\.\s*(?:rm|rmdir|unlink)\s*\(|\b(?:rm|rmdir|unlink)Sync\s*\("),
    Harm("net, dgram, tls", "dangerous-network", "this connects to the network or listens",
         r"""['"`](?:node:)?(?:net|dgram|tls)['"`]"""),
    Harm("fs.chmod(..., 0o777)", "dangerous-permissions", "this lets everyone write there",
         r"\bchmod(?:Sync)?\s*\([^)]{0,200}\b(?:0o)?[0-7]{2,3}[2367]\b"),
)  # fmt: skip

CHECKER = Checker(f"require('{BESIDE_PROGRAM}/check_node.cjs');\n", _HINTS)
