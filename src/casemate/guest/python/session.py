"""The Python interpreter of a session: runs steps from the host, one at a time, in one namespace.

docs/internals/session-protocol.md describes the pipes. session_shell runs code, session_steps assigns output to steps,
session_streams are the standard streams, session_interrupts handles SIGINT. Their code uses nothing that user code can
replace: neither builtins nor modules that it would have to look up.

The shell is made on import, in a zygote before any cell is forked. A cell that is not a session must not see it. So
this module removes what IPython puts into the interpreter, and restores it when a session begins.
"""

import atexit
import builtins
import functools
import os
import sys

import _casemate  # type: ignore[import-not-found]
from _casemate.displays import show_all_columns  # type: ignore[import-not-found]
from _casemate.session_frames import CANNOT_SPEAK, encode, pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import STARTING, interrupts  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]
from _casemate.session_loop import loop  # type: ignore[import-not-found]
from _casemate.session_steps import Step, steps  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["__builtins__", "main"]

_exit, _modules = os._exit, sys.modules
_run_at_exit = atexit._run_exitfuncs
_OLDEST = (8, 0)
_BUILTINS = ("__IPYTHON__", "display", "get_ipython")
_PROMPTS = ("ps1", "ps2", "ps3")
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
# Runs once before any session, to load what first steps load lazily.
_REHEARSAL = (
    "import sys as _sys\nx = [f'{n!r} {n / 2:.1f}' for n in range(3)]\nprint(x)\nprint(1, file=_sys.stderr)\n{1: x}",
    "x",
    "1 + 1",
    "%who_ls",
    "display(x)",
    "def f(n):\n    return 1 / n\nf(0)",
    "f(",
    "import asyncio\nawait asyncio.sleep(0)",
    "_sys.exit(1)",
    "class C:\n    def _repr_html_(self): return '<b>'\nC()",
)
problem: "str | None" = None
_shell: "Any" = None


def main() -> "NoReturn":
    """Serve the host until it closes the pipe of requests, or the user's code ends the process."""
    pipes.take()
    if problem is not None:
        pipes.send(encode({"type": "ready", "problem": problem}))
        _exit(0)
    from _casemate.session_serving import Serving  # type: ignore[import-not-found]

    try:
        serving = Serving(_claim_shell(), end)
        _flush_before_exit_functions()
        pipes.send(encode({"type": "ready"}))
        while True:
            loop.wait()
            pipes.wait()
            interrupts.state = STARTING
            request = pipes.receive()
            if request is None:
                end(0)
            serving.answer(request)
    except BaseException:  # the session's descriptors or memory are gone
        _exit(CANNOT_SPEAK)


def _flush_before_exit_functions() -> None:
    """Flush before calls that end the process abruptly, which would lose collected lines."""
    for name in ("_exit", "abort", "execv", "execve"):
        setattr(os, name, _with_flush(getattr(os, name)))


def _with_flush(function: "Any") -> "Any":
    @functools.wraps(function)
    def flush_and_call(*arguments: "Any", **named: "Any") -> "Any":
        steps.flush()
        return function(*arguments, **named)

    return flush_and_call


def end(code: int) -> "NoReturn":
    """End the process like an interpreter: flush output and run exit functions."""
    if pipes.are_mine():
        _casemate.control = None  # the one-shot hook would report the last error of the session
        process = _modules.get("_casemate.process")
        if process is not None:
            atexit.unregister(process._leave)
    try:
        _run_at_exit()
        steps.flush()
    finally:
        _exit(code & 0xFF)


def _claim_shell() -> "Any":
    """Install the shell in the interpreter, and return it."""
    _shell.starting_dir = os.getcwd()
    _shell.home_dir = os.path.expanduser("~")
    _shell.history_manager.dir_hist[:] = [_shell.starting_dir]
    for name, value in _builtins.items():
        setattr(builtins, name, value)
    for name, value in _prompts.items():
        setattr(sys, name, value)
    for kind in _shell._walk_mro():
        kind._instance = _shell
    if "pandas" in _modules:  # a zygote has imported it
        show_all_columns(_modules["pandas"])
    return _shell


def _create_shell() -> "Any":
    """Make the shell. If that fails, return None and set ``problem``."""
    global problem
    fix = f"sessions of Python run on it: install it into the environment ({sys.executable} -m pip install ipython)"
    try:
        import IPython
    except ImportError as error:
        problem = f"IPython cannot be imported ({error}); {fix}"
        return None
    if IPython.version_info[:2] < _OLDEST:
        problem = f"IPython {IPython.__version__} is too old, 8.0 is needed; {fix}"
        return None
    try:
        from _casemate.session_shell import make_shell  # type: ignore[import-not-found]

        return make_shell()
    except Exception as error:
        problem = f"IPython {IPython.__version__} does not start: {type(error).__name__}: {error}"[:500]
        return None


def _rehearse(shell: "Any") -> None:
    """Run typical steps without output, and forget them."""
    from _casemate import session_errors, session_names, session_streams

    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.modules["__main__"], steps.running
    null = os.open(os.devnull, os.O_WRONLY)
    step = Step(0, null, os.dup(null))
    try:
        steps.rehearse(step)
        session_streams.install()
        sys.modules["__main__"] = shell.user_module
        names = session_names.UserNames(shell.user_ns, shell.user_ns_hidden)
        for code in _REHEARSAL:
            result = shell.run_cell(code, store_history=True)
            error = result.error_before_exec or result.error_in_exec
            if error is not None:
                session_errors.describe(shell, error)
            names.changes()
        names.variables()
    finally:
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.modules["__main__"], running = before  # type: ignore[misc]
        steps.rehearse(running)
        step.close()
    _reset(shell)


def _reset(shell: "Any") -> None:
    """Reset the shell to the state before any step."""
    loop.close()
    shell.reset(new_session=False)
    shell.execution_count = 1
    history = shell.history_manager
    history.input_hist_parsed[:] = history.input_hist_raw[:] = [""]
    history.db_input_cache[:] = []
    history._i = history._ii = history._iii = history._i00 = ""
    shell.user_ns.update(dict.fromkeys(("__doc__", "__loader__", "__package__", "__spec__")))
    shell.user_ns.update(dict.fromkeys(("_", "__", "___"), ""))
    for name in [name for name in shell.user_ns if name.startswith("_i") and name not in shell.user_ns_hidden]:
        del shell.user_ns[name]
    shell.compile._filename_map.clear()
    for name in _LAST:
        vars(sys).pop(name, None)


def _hide_shell(shell: "Any") -> None:
    atexit.unregister(shell.atexit_operations)
    type(shell).clear_instance()
    for removed, names, place in ((_builtins, _BUILTINS, builtins), (_prompts, _PROMPTS, sys)):
        for name in names:
            value = vars(place).pop(name, None)
            if value is not None:
                removed[name] = value


_builtins: "dict[str, Any]" = {}
_prompts: "dict[str, Any]" = {}
_before = {name: vars(builtins)[name] for name in _BUILTINS if name in vars(builtins)}
_shell = _create_shell()
if _shell is not None:
    if getattr(_casemate, "rehearses", True):  # False if a caller already waits for the first step
        _rehearse(_shell)
    _hide_shell(_shell)
    __import__("_casemate.session_serving")  # needed when a session begins
vars(builtins).update(_before)
