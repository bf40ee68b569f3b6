"""A session's shell, made when this is imported: in a zygote that is ahead, for all the cells that are forked from it.

Whatever else runs in such a cell must not see it: what IPython puts into the interpreter is taken out again here, and
put back when a session begins (`take`).
"""

import atexit
import builtins
import os
import sys

from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["__builtins__", "problem", "take"]

_OLDEST = (8, 0)
_BUILTINS = ("__IPYTHON__", "display", "get_ipython")
_PROMPTS = ("ps1", "ps2", "ps3")
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
# Runs once before any session: what the first steps of any load late is loaded then.
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


def take() -> "Any":
    """The shell, as the interpreter's own."""
    _shell.starting_dir = os.getcwd()
    _shell.home_dir = os.path.expanduser("~")
    _shell.history_manager.dir_hist[:] = [_shell.starting_dir]
    for name, value in _builtins.items():
        setattr(builtins, name, value)
    for name, value in _prompts.items():
        setattr(sys, name, value)
    for kind in _shell._walk_mro():
        kind._instance = _shell
    return _shell


def _made() -> "Any":
    """The shell; None, and why, where it cannot be made."""
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
    """Run what steps run, with nobody listening, and forget it."""
    from _casemate import session_errors, session_names, session_streams  # type: ignore[import-not-found]
    from _casemate.session_steps import Step, steps  # type: ignore[import-not-found]

    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.modules["__main__"], steps.running
    nowhere = os.open(os.devnull, os.O_WRONLY)
    step = Step(0, nowhere, os.dup(nowhere))
    try:
        steps.rehearse(step)
        session_streams.install()
        sys.modules["__main__"] = shell.user_module
        names = session_names.Names(shell.user_ns, shell.user_ns_hidden)
        for code in _REHEARSAL:
            result = shell.run_cell(code, store_history=True)
            error = result.error_before_exec or result.error_in_exec
            if error is not None:
                session_errors.fields(shell, error)
            names.changes()
        names.variables()
    finally:
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.modules["__main__"], running = before  # type: ignore[misc]
        steps.rehearse(running)
        step.forget()
    _forget(shell)


def _forget(shell: "Any") -> None:
    """The state of a shell that has run nothing."""
    from _casemate.session_loop import loop  # type: ignore[import-not-found]

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


def _set_aside(shell: "Any") -> None:
    atexit.unregister(shell.atexit_operations)
    type(shell).clear_instance()
    for kept, names, place in ((_builtins, _BUILTINS, builtins), (_prompts, _PROMPTS, sys)):
        for name in names:
            now = vars(place).pop(name, None)
            if now is not None:
                kept[name] = now


_builtins: "dict[str, Any]" = {}
_prompts: "dict[str, Any]" = {}
_before = {name: vars(builtins)[name] for name in _BUILTINS if name in vars(builtins)}
_shell = _made()
if _shell is not None:
    _rehearse(_shell)
    _set_aside(_shell)
    for _name in ("session_serving", "session"):  # what a session begins with
        __import__(f"_casemate.{_name}")
vars(builtins).update(_before)
