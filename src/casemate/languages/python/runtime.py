"""Python programs, with casemate's own interpreter and packages or those of another environment."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.errors import CasemateError
from casemate.languages import interpreters
from casemate.languages.places import entries_for, is_inside, is_program, is_system, stamp_of
from casemate.languages.runtime import (
    CELL_PATH,
    THREAD_COUNTS,
    Environment,
    LanguageInstallation,
    Runtime,
    prepend_path,
)
from casemate.languages.waiting import RequestedProgram, json_order, read_at_start, too_special
from casemate.model.plan import GUEST, HOME, MODULES, PROGRAM, Bind, Entry, Launch, ReadyStart

if TYPE_CHECKING:
    from casemate.languages.interpreters import Interpreter

_HOOK = f"{GUEST}/python"
# The first Python with -P. Without it, the program's folder comes before the workspace on sys.path.
_SAFE_PATH = (3, 11)
_OLDEST_ZYGOTE = (3, 11)
# What most programs of agents import, if installed. Sessions run on IPython.
PRELOADED = ("IPython.core.interactiveshell", "numpy", "pandas", "matplotlib.pyplot")
_SESSION = "_casemate.session"  # its import makes IPython's shell
_WATCHED = ("IPython", "numpy", "pandas", "matplotlib")
_COST, _COST_PRELOADED = 3 << 20, 8 << 20  # bytes that a waiting process holds, including its init
_LOOKS_A_SECOND = 10  # checks of an environment on disk
# Variables read when Python starts, or when preloaded modules are imported.
_READ_AT_START = re.compile(
    r"PYTHON|CASEMATE|MPL|NPY_|PANDAS|NUMEXPR|IPYTHON|JUPYTER|OMP_|OPENBLAS|MKL_|BLIS_|VECLIB|HOME\Z|XDG_"
)


class PythonRuntime(Runtime):
    """``python main.py``, with guest/python/sitecustomize.py. The start is normal: the environment's .pth files and
    sitecustomize run, because they run behind the wall."""

    language = "python"
    extensions = (".py", ".pyw")
    default_name = "main.py"
    reports = True
    asks_for = "each command"

    def launch(
        self,
        environment: Environment,
        program_name: str,
        arguments: tuple[str, ...],
        *,
        memory: int | None = None,  # noqa: ARG002 - only Node must be told
        session: bool = False,  # noqa: ARG002
    ) -> Launch:
        return launch_of(_find(environment), program_name, arguments)

    def ready_start(self, asked: RequestedProgram) -> ReadyStart | str:
        # Programs are forked from the zygote of their environment.
        why = too_special(asked, self.default_name) or read_at_start(asked, _READ_AT_START) or _unfit(asked)
        if why:
            return why
        env = {name: value for name, value in asked.env.items() if name != "PYTHONPATH"}
        if asked.env.get("PYTHONPATH", "").endswith(MODULES):
            env["PYTHONPATH"] = MODULES  # for its child processes; it has its hook already
        order = json_order(env, asked.arguments, session=asked.session)
        if isinstance(order, str):
            return order
        preload = _preload(asked)
        tick = int(time.monotonic() * _LOOKS_A_SECOND)  # packages are checked again only after this changes
        return ReadyStart(
            argv=asked.launch.argv[: len(asked.launch.argv) - len(asked.arguments)],
            env={**asked.base_env, **dict.fromkeys(THREAD_COUNTS, "1")},
            order=order,
            limits=asked.most,
            cost=_COST_PRELOADED if preload else _COST,
            preload=preload,
            optional=asked.preload is None,
            stamp=_stamp_of(asked.launch.entries, asked.launch.argv[0], asked.launch.version, tick),
            fuller=() if preload else _modules_to_preload(asked),
            fuller_cost=_COST_PRELOADED,
        )

    def examples(self, preload: tuple[str, ...] | None) -> tuple[str, ...]:
        if preload is None:
            return ("pass", "import numpy")
        return ("pass", f"import {preload[0]}") if preload else ("pass",)

    def session_env(self, env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        return prepend_path((f"{GUEST}/python_bin",), env, asked)

    def find_installation(self, environment: Environment = None) -> LanguageInstallation:
        """The interpreter of an environment, or by default the one that runs casemate."""

        try:
            found = _find(environment)
        except CasemateError as error:
            return LanguageInstallation(
                self.language, missing=error.message, remedy="python3 -m venv ~/casemate-python"
            )
        source = "casemate's own interpreter" if environment is None else "the sandbox's environment"
        return LanguageInstallation(self.language, version=found.version, path=str(found.executable), source=source)


def _unfit(asked: RequestedProgram) -> str:
    """Why its environment has no zygote; empty if it has one."""
    release = tuple(int(part) for part in asked.launch.version.split(".")[:2])
    if release < _OLDEST_ZYGOTE:
        return f"zygotes need Python {'.'.join(map(str, _OLDEST_ZYGOTE))} or newer"
    if asked.folder is not None:
        folder = asked.folder.resolve()
        for tree in [Path(entry.source) for entry in asked.launch.entries if isinstance(entry, Bind)]:
            if is_inside(tree, folder) or is_inside(folder, tree):
                return f"its environment ({tree}) lies where cells write"
    return ""


def _preload(asked: RequestedProgram) -> tuple[str, ...]:
    """The modules to load before the program starts: the sandbox's if the program may need any of them, or else none.

    A wrong guess only costs time. A cell with these modules takes several times as long to make; without them, a
    program that imports one waits for it as in plain Python.
    """
    names = _modules_to_preload(asked)
    if asked.session:
        return (*names, _SESSION)
    if asked.folder is not None:
        return names  # imports of modules in the folder are not known
    texts = [asked.code, *(content for name, content in asked.files.items() if name.endswith(".py"))]
    roots = {name.partition(".")[0].encode() for name in names}
    named = any(not isinstance(text, bytes) or any(root in text for root in roots) for text in texts)
    return names if named else ()


def _modules_to_preload(asked: RequestedProgram) -> tuple[str, ...]:
    return PRELOADED if asked.preload is None else asked.preload


@functools.lru_cache(maxsize=64)
def _packages_of(entries: tuple[Entry, ...], executable: str, version: str) -> tuple[str, ...]:
    """Files and folders whose modification times show that packages were added to or removed from an environment."""
    name = f"python{'.'.join(version.split('.')[:2])}"
    sources = [entry.source for entry in entries if isinstance(entry, Bind)]
    prefixes = [executable.rpartition("/bin/")[0], *sources, *(source.rpartition("/lib")[0] for source in sources)]
    places = [f"{prefix}/{lib}/{name}/{kind}" for prefix in dict.fromkeys(prefixes) for lib in ("lib", "lib64")
              for kind in ("site-packages", "dist-packages")]  # fmt: skip
    folders = [place for place in (*places, "/usr/lib/python3/dist-packages", *sources) if os.path.isdir(place)]
    modules = [f"{folder}/{root}" for folder in folders for root in _WATCHED if os.path.isdir(f"{folder}/{root}")]
    return (executable, *dict.fromkeys((*folders, *modules)))


@functools.lru_cache(maxsize=8)
def _stamp_of(entries: tuple[Entry, ...], executable: str, version: str, now: int) -> tuple[int, ...]:  # noqa: ARG001
    return tuple(part for path in _packages_of(entries, executable, version) for part in stamp_of(path))


@functools.lru_cache(maxsize=64)
def launch_of(found: Interpreter, program_name: str, arguments: tuple[str, ...]) -> Launch:
    """How ``found`` starts a program, from its known facts alone."""
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


@functools.lru_cache(maxsize=64)
def _env_of(found: Interpreter) -> dict[str, str]:
    """PYTHONPATH leads to the hook, which removes it. No __pycache__ is left among the program's files. ``python``
    means this interpreter for child processes, too."""
    env = {"PYTHONPATH": f"{_HOOK}:{MODULES}", "PYTHONDONTWRITEBYTECODE": "1"}
    folder = str(found.executable.parent)
    if not is_system(folder):
        env["PATH"] = f"{folder}:{CELL_PATH}"
    return env


def _find(environment: Environment) -> Interpreter:
    if isinstance(environment, str | os.PathLike):
        path = os.path.abspath(os.path.expanduser(os.fspath(environment)))
        return _find_cached(path, _stamps(path))
    if environment is None:
        return _find_cached(None, _stamps(sys.executable))
    return interpreters.find(environment)


@functools.lru_cache(maxsize=64)
def _find_cached(path: str | None, stamps: tuple[tuple[int, int], ...]) -> Interpreter:  # noqa: ARG001 - the stamps are the key
    return interpreters.find(path)


def _stamps(path: str) -> tuple[tuple[int, int], ...]:
    """Changes when the interpreter, its link, or the environment's settings are replaced."""
    home = os.path.dirname(os.path.dirname(path))
    inside = () if path == sys.executable else (f"{path}/bin/python", f"{path}/pyvenv.cfg")
    return tuple(map(stamp_of, (path, f"{home}/pyvenv.cfg", *inside)))


def ruff_path() -> Path | None:
    """The ruff of casemate's own environment (the extra ``check``), or None."""
    place = Path(sys.executable).parent / "ruff"
    return place if is_program(place) else None
