"""Finds the Python of an ``environment`` in the file system, without starting it.

An earlier run could have written anything under the name of python. Reading files is safe.
"""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from casemate.errors import InvalidArgument, RuntimeMissing, Unavailable
from casemate.languages.places import hops, is_program, is_system, too_wide, unreadable

if TYPE_CHECKING:
    from casemate.languages.runtime import Environment

OLDEST = (3, 9)
_WANTED = "Give a virtual environment's folder (with pyvenv.cfg), an interpreter (/usr/bin/python3.12), or None."
_NAMES = ("python", "python3", "bin/python", "bin/python3")
_OWN_VERSION = ".".join(str(part) for part in sys.version_info[:3])


class Interpreter(NamedTuple):
    executable: Path  # the path to call
    real: Path  # the file behind all links; an interpreter whose links lead elsewhere now is another one
    version: str
    chain: tuple[Path, ...]  # each link from ``executable`` to ``real``
    trees: tuple[Path, ...]  # files and folders that it reads, outside the system's
    links: tuple[Path, ...] = ()  # other links that it goes through
    user_packages: Path | None = None  # the user's own site-packages

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor.rstrip("t"))


def find(environment: Environment) -> Interpreter:
    """The interpreter of ``environment``. Raises like :meth:`casemate.languages.runtime.Runtime.launch`."""
    if environment is None:
        return _own()
    if not isinstance(environment, str | os.PathLike):
        raise _refused_list(environment)
    given = Path(os.path.abspath(os.path.expanduser(os.fspath(environment))))
    return _check_release(_at(given), given)


def _own() -> Interpreter:
    """The interpreter that casemate runs on, if a cell may see it. Its facts need no search."""
    if not sys.executable:
        raise RuntimeMissing("python", "this Python does not know its own executable", remediation=_WANTED)
    executable = Path(sys.executable)
    if ".." in executable.parts:  # as of ../venv/bin/python; no cell is shown such a path
        executable = executable.parent.resolve() / executable.name
    chain = tuple(hops(executable))
    trees = [Path(sys.base_prefix), Path(sys.base_exec_prefix)]
    if sys.prefix != sys.base_prefix:
        trees += _of_virtual_environment(Path(sys.prefix))
    trees += [root for hop in chain if (root := _root_of(hop)) is not None and root != Path(sys.prefix)]
    packages = Path(site.getusersitepackages())
    found = Interpreter(
        executable=executable,
        real=executable.resolve(),
        version=_OWN_VERSION,
        chain=chain,
        trees=_outside_the_system(trees),
        links=_links_of(Path(sys.prefix)),
        user_packages=packages if str(packages) in sys.path else None,
    )
    try:
        return _check_release(found, executable)
    except InvalidArgument as error:
        raise RuntimeMissing(
            "python",
            f"the Python that casemate runs on cannot be used in a cell: {error.message}",
            remediation=f"Run casemate on another, or set environment. {_WANTED}",
        ) from None


def _refused_list(environment: object) -> Unavailable | InvalidArgument:
    if isinstance(environment, Sequence) and all(isinstance(entry, str) for entry in environment):
        return Unavailable(
            "environment: requirements that are not a list are not installed",
            remediation="Give a list of requirements, or the folder of a virtual environment.",
        )
    return InvalidArgument("environment", f"{environment!r} is not a path", remediation=_WANTED)


def _at(given: Path) -> Interpreter:
    executable = _executable_at(given)
    try:
        chain = tuple(hops(executable))
    except OSError as error:
        raise InvalidArgument("environment", str(error), remediation=_WANTED) from None
    if not chain[-1].exists():
        raise InvalidArgument(
            "environment",
            f"{executable} is a link to {chain[-1]}, which does not exist",
            remediation=f"Its Python was removed; create the environment again. {_WANTED}",
        )
    if not is_program(chain[-1]):
        raise InvalidArgument(
            "environment",
            f"{chain[-1]} is not a program but a script, such as a version manager's shim",
            remediation="Give the interpreter itself: run it with -c 'import sys; print(sys.executable)'.",
        )
    return _describe(executable, chain)


def _executable_at(given: Path) -> Path:
    if given.is_dir():
        for name in _NAMES:
            if (given / name).exists() or (given / name).is_symlink():
                return given / name
        raise InvalidArgument("environment", f"{given} has no bin/python", remediation=_WANTED)
    if not given.exists() and not given.is_symlink():
        raise InvalidArgument("environment", f"{given} does not exist", remediation=_WANTED)
    return given


def _describe(executable: Path, chain: tuple[Path, ...]) -> Interpreter:
    """Find the folders that Python itself would find, in the same way (see getpath in its manual)."""
    home = _virtual_environment_of(executable)
    settings = _settings(home) if home else {}
    roots = [root for hop in chain if (root := _root_of(hop)) is not None and root != home]
    if settings.get("home"):
        roots.append(Path(settings["home"]).parent)
    base = next((root for root in reversed(roots) if _libraries(root, chain)), None)
    if base is None:
        raise InvalidArgument(
            "environment", f"{chain[-1]} has no Python 3 standard library beside it", remediation=_WANTED
        )
    name = _libraries(base, chain)[0]
    trees = [root for root in roots if _libraries(root, chain)]
    if home:
        trees += _of_virtual_environment(home)
    real = executable.resolve()
    if real == Path(sys.executable).resolve():
        version = _OWN_VERSION
    else:
        version = settings.get("version_info") or settings.get("version") or _patch_level(base, name)
    return Interpreter(
        executable=executable,
        real=real,
        version=_release_of(version, name),
        chain=chain,
        trees=_outside_the_system(trees),
        links=_links_of(home) if home else (),
    )


def _virtual_environment_of(executable: Path) -> Path | None:
    for folder in (executable.parent, executable.parent.parent):
        if (folder / "pyvenv.cfg").is_file():
            return folder
    return None


def _settings(home: Path) -> dict[str, str]:
    try:
        lines = (home / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _of_virtual_environment(home: Path) -> list[Path]:
    """The parts of an environment that Python needs. A project around it stays hidden."""
    wanted = (home / name for name in ("pyvenv.cfg", "bin", "lib", "lib64"))
    return [path for path in wanted if path.exists() and path not in _links_of(home)]


def _links_of(home: Path) -> tuple[Path, ...]:
    """In most environments, ``lib64`` is a link to ``lib``."""
    link = home / "lib64"
    return (link,) if link.is_symlink() and os.readlink(link) == "lib" else ()


def _root_of(hop: Path) -> Path | None:
    """The prefix of a file in the chain: ``/opt/py`` for ``/opt/py/bin/python3``."""
    return hop.parent.parent if hop.parent.name == "bin" else None


def _libraries(root: Path, chain: Sequence[Path]) -> list[str]:
    """The names (``python3.12``) of standard libraries in ``root`` that fit the last file of ``chain``."""
    named = re.fullmatch(r"python(3\.\d+t?)", chain[-1].name)
    pattern = f"python{named[1]}" if named else "python3*"
    found = {file.parent.name for lib in ("lib", "lib64") for file in root.glob(f"{lib}/{pattern}/os.py")}
    if len(found) > 1:
        raise InvalidArgument(
            "environment",
            f"{chain[-1]} may be any of {', '.join(sorted(found))}",
            remediation="Give the interpreter with its version in its name.",
        )
    return list(found)


def _patch_level(base: Path, library: str) -> str:
    try:
        header = (base / "include" / library / "patchlevel.h").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    match = re.search(r'#define PY_VERSION\s+"([^"]+)"', header)
    return match[1] if match else ""


def _release_of(version: str, library: str) -> str:
    """``3.12.4`` if known, or else the ``3.12`` of the library's name."""
    match = re.match(r"\d+\.\d+(\.\d+)?", version)
    return match[0] if match else library.removeprefix("python").rstrip("t")


def _outside_the_system(trees: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(tree for tree in trees if not is_system(tree)))


def _check_release(found: Interpreter, given: Path) -> Interpreter:
    if found.release < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise InvalidArgument("environment", f"{given} is Python {found.version}; {oldest} is the oldest that works")
    for tree in found.trees:
        reason = too_wide(tree)
        if reason:
            raise InvalidArgument(
                "environment",
                f"{given} needs {tree} to be readable in the cell, and {reason}",
                remediation="Use a Python that is installed in its own folder.",
            )
    hidden = unreadable([found.chain[-1], *found.trees, *_landmarks(found)])
    if hidden is not None:
        raise InvalidArgument(
            "environment",
            f"{hidden} cannot be read by the ordinary user that a cell runs as",
            remediation=f"Make it readable (chmod -R a+rX {hidden}), or use another Python.",
        )
    return found


def _landmarks(found: Interpreter) -> list[Path]:
    """A few files of each tree that stand for the rest."""
    library = f"lib/python{found.release[0]}.{found.release[1]}"
    named = (tree / name for tree in found.trees for name in (library, f"{library}/os.py", f"{library}/site-packages"))
    return [path for path in named if path.exists()]
