"""Python programs: the interpreter and packages that casemate runs on, or those of another environment."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from casemate.errors import CasemateError
from casemate.model.plan import GUEST, HOME, PROGRAM, Bind, Entry, Launch
from casemate.runtimes import interpreters
from casemate.runtimes.interpreters import Interpreter
from casemate.runtimes.places import entries_for, is_system
from casemate.runtimes.runtime import SYSTEM_PATH, Environment, Installed

_HOOK = f"{GUEST}/python"
# The first Python that knows -P: without it the program's folder comes before the workspace on sys.path.
_SAFE_PATH = (3, 11)


class PythonRuntime:
    """``python main.py``, with what guest/python/sitecustomize.py adds. Normal start: the environment's own .pth files
    and sitecustomize run, because they run behind the wall."""

    language = "python"
    aliases = ("py", "python3")
    extensions = (".py", ".pyw")
    default_name = "main.py"
    reports = True
    reserve = 0

    def launch(
        self,
        environment: Environment,
        program_name: str,
        arguments: tuple[str, ...],
        *,
        memory: int | None = None,  # noqa: ARG002 - only Node must be told
    ) -> Launch:
        """See :class:`casemate.runtimes.runtime.Runtime`."""
        return launch_of(_found(environment), program_name, arguments)

    def installed(self) -> Installed:
        """The interpreter that casemate runs on."""
        try:
            found = _found(None)
        except CasemateError as error:
            return Installed(self.language, missing=error.message, remedy="python3 -m venv ~/casemate-python")
        return Installed(self.language, version=found.version, path=str(found.executable))


def launch_of(found: Interpreter, program_name: str, arguments: tuple[str, ...]) -> Launch:
    """How ``found`` starts a program: decided from what is known of it alone."""
    flags = ("-P",) if found.release >= _SAFE_PATH else ()
    return Launch(
        language=PythonRuntime.language,
        version=found.version,
        entries=_entries(found),
        argv=(str(found.executable), *flags, f"{PROGRAM}/{program_name}", *arguments),
        env=_env_of(found),
    )


@functools.lru_cache(maxsize=64)
def _entries(found: Interpreter) -> tuple[Entry, ...]:
    binds = entries_for(found.trees, (*found.chain, *found.links))
    if found.user_packages is not None:
        major, minor = found.release
        target = f"{HOME}/.local/lib/python{major}.{minor}/site-packages"
        binds = (*binds, Bind(str(found.user_packages), target))
    return binds


def _env_of(found: Interpreter) -> dict[str, str]:
    """The hook is found by PYTHONPATH (and removes it); no __pycache__ is left among the program's files; ``python``
    means this interpreter for the program's children too."""
    env = {"PYTHONPATH": _HOOK, "PYTHONDONTWRITEBYTECODE": "1"}
    folder = str(found.executable.parent)
    if not is_system(folder):
        env["PATH"] = f"{folder}:{SYSTEM_PATH}"
    return env


def _found(environment: Environment) -> Interpreter:
    if isinstance(environment, str | os.PathLike):
        path = os.path.abspath(os.path.expanduser(os.fspath(environment)))
        return _remembered(path, _stamps(Path(path)))
    if environment is None:
        return _remembered(None, _stamps(Path(sys.executable)))
    return interpreters.find(environment)


@functools.lru_cache(maxsize=64)
def _remembered(path: str | None, stamps: tuple[int, ...]) -> Interpreter:  # noqa: ARG001 - the stamps are the key
    return interpreters.find(path)


def _stamps(path: Path) -> tuple[int, ...]:
    """Changes when what is there is replaced: the interpreter itself, its link, or the environment's settings."""
    files = (path, path / "bin/python", path / "pyvenv.cfg", path.parent.parent / "pyvenv.cfg")
    return tuple(stamp for file in files for stamp in (_stamp(file, True), _stamp(file, False)))


def _stamp(file: Path, follow: bool) -> int:
    try:
        return os.stat(file, follow_symlinks=follow).st_mtime_ns
    except OSError:
        return 0
