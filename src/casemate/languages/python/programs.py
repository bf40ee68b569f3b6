"""What else runs in cells for Python: the interpreter of sessions, and the checker."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import get_args

from casemate.languages.checker import Checker, Harm
from casemate.languages.session_program import JsonProgram
from casemate.model.front_end import Task
from casemate.model.overview import Fix, Issue
from casemate.model.plan import BESIDE_PROGRAM

# A user's file named like a module of IPython must not keep the next interpreter from starting.
_PROGRAM = b"""import sys
sys.path.pop(0)
import _casemate
_casemate.rehearses = False
from _casemate import session
sys.path.insert(0, "")
session.main()
"""
SESSION = JsonProgram(_PROGRAM, get_args(Task))


_COLON = re.compile(r"expected ':'")


def repair(text: str, issues: Sequence[Issue], *, has_moved: bool) -> tuple[str, list[Fix]]:
    """Repair indentation of the whole text, tabs among spaces, and a missing colon that the parser reports."""
    fixes: list[Fix] = []
    if (plain := textwrap.dedent(text)) != text and text[:1] in (" ", "\t", "\n"):
        text = plain
        fixes.append(Fix("Remove the indentation of the whole text", 1, "indentation"))
    if any("inconsistent use of tabs" in issue.message for issue in issues):
        text = text.expandtabs(8)
        fixes.append(Fix("Replace tabs by spaces", 0, "tabs"))
    colon = next((issue for issue in issues if _COLON.match(issue.message)), None)
    if colon is not None and not has_moved and not fixes:
        lines = text.split("\n")
        if 0 < colon.line <= len(lines) and colon.column > 0:
            line = lines[colon.line - 1]
            lines[colon.line - 1] = f"{line[: colon.column - 1].rstrip()}:{line[colon.column - 1 :]}"
            text = "\n".join(lines)
            fixes.append(Fix("Add a colon at the end of the line that begins a block", colon.line, "colon"))
    return text, fixes


_HINTS = (
    Harm("eval, builtins.eval", "dangerous-eval", "this runs any text it is given"),
    Harm("exec, builtins.exec", "dangerous-exec", "this runs any text it is given"),
    Harm("__import__, builtins.__import__, importlib.import_module", "dangerous-import", "this can load any module"),
    Harm("__builtins__, .__builtins__, .__globals__, .__subclasses__", "dangerous-builtins", "this hides what runs"),
    Harm("pickle.load, pickle.loads, pickle.Unpickler, shelve.open, marshal.load, marshal.loads", "dangerous-pickle",
         "loading can run its author's code, or crash the interpreter"),
    Harm("os.system, os.popen, subprocess.getoutput, subprocess.getstatusoutput", "dangerous-shell",
         "a shell runs the text"),
    Harm("os.fork, os.forkpty, pty.fork, pty.spawn, os.posix_spawn, os.posix_spawnp, os.execl, os.execle, os.execlp,"
         " os.execv, os.execve, os.execvp, os.execvpe, os.spawnl, os.spawnlp, os.spawnv, os.spawnve, os.spawnvp",
         "dangerous-process", "this starts a program or a process"),
    Harm("os.kill, os.killpg, signal.pthread_kill", "dangerous-kill", "this ends a process"),
    Harm("os._exit, os.abort", "dangerous-exit", "this ends the program at once, without its cleanup"),
    Harm("os.remove, os.unlink, os.rmdir, os.removedirs, shutil.rmtree, .unlink, .rmdir", "dangerous-remove",
         "this removes files or folders"),
    Harm("socket.socket, socket.create_connection, socket.create_server, asyncio.open_connection,"
         " asyncio.start_server", "dangerous-network", "this connects to the network or listens"),
    Harm("import ctypes, import cffi", "dangerous-native", "this calls native code"),
)  # fmt: skip

CHECKER = Checker(
    f"__file__ = __file__.rpartition('/')[0] + '/{BESIDE_PROGRAM}/check_python.py'\n"
    "exec(compile(open(__file__).read(), __file__, 'exec'))\n",
    hints=_HINTS,
    repair=repair,
)
