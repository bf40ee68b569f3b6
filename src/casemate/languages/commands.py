"""Host commands: the file that a name means, and what a cell must see of the host to start it.

A cell sees little: the file, the environment or module folder around it if that is obvious, and the same for the
interpreter in its first line. The user names anything else that it reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument
from casemate.languages.node.runtime import NodeRuntime
from casemate.languages.places import entries_for, hops, is_inside, is_program, is_system, too_wide
from casemate.languages.python.runtime import PythonRuntime
from casemate.languages.runtime import SYSTEM_PATH

if TYPE_CHECKING:
    from casemate.model.plan import Entry

# V8 reserves this without touching it. Which interpreter runs a command in the end is not known.
RESERVE = NodeRuntime.reserve
_MOST_INTERPRETERS = 3  # a script whose interpreter is a script, and so on
_FIRST_LINE = 256  # bytes of the first line that the kernel reads (execve(2))
_MODULES = "node_modules"
_SHIMS = "shims"  # scripts of version managers, which look for their folder in the user's home


@dataclass(frozen=True, slots=True)
class InterpreterCommand:
    program: Path  # an absolute path
    entries: tuple[Entry, ...]  # what a cell must see to run it
    shown: tuple[Path, ...]  # more files and folders to show
    folders: tuple[str, ...]  # for PATH
    is_node: bool  # whether Node runs it


def find(name: str, path: str, cwd: Path, inside: Path) -> InterpreterCommand:
    """The command that a shell in ``cwd`` would find for ``name`` on ``path``. The cell sees the folder ``inside`` in
    any case.

    Raises ``InvalidArgument`` if the command does not exist or cannot be started.
    """
    program = _locate(name, path, cwd)
    entries: dict[Entry, None] = {}
    shown: dict[Path, None] = {}
    folders: dict[str, None] = {}
    is_node = False
    for one in _chain_of_interpreters(program, path):
        folders[str(one.parent)] = None
        chain = list(hops(one))
        is_node = is_node or chain[-1].name in ("node", "nodejs")
        if all(is_system(hop) or is_inside(hop, inside) for hop in chain):
            continue
        more, trees = _needs(one, chain)
        entries.update(dict.fromkeys(more))
        shown.update(dict.fromkeys(trees))
        links = entries_for((), [hop for hop in chain if not is_inside(hop, inside)])
        entries.update(dict.fromkeys(link for link in links if not _is_shown(link, (*shown, inside), entries)))
    return InterpreterCommand(program, tuple(entries), tuple(shown), (*folders, *SYSTEM_PATH.split(":")), is_node)


def _locate(name: str, path: str, cwd: Path) -> Path:
    if not name or "\0" in name:
        raise InvalidArgument("command", f"{name!r} is not a command name")
    if "/" in name:
        program = Path(os.path.normpath(cwd / Path(name).expanduser()))
        if not program.is_file():
            raise InvalidArgument("command", f"{str(program)!r} does not exist, or is not a file")
        if not os.access(program, os.X_OK):
            raise InvalidArgument("command", f"{str(program)!r} is not executable (chmod +x)")
        return program
    usable = [folder for folder in path.split(os.pathsep) if os.path.isabs(folder) and Path(folder).name != _SHIMS]
    found = shutil.which(name, path=os.pathsep.join(usable) or SYSTEM_PATH)
    if found is None:
        raise InvalidArgument(
            "command",
            f"{name!r} was not found on PATH",
            remediation="Give the program's path, or add its folder to PATH.",
        )
    return Path(found)


def _chain_of_interpreters(program: Path, path: str) -> Iterator[Path]:
    """The program, then the interpreter in its first line, and so on."""
    for _ in range(_MOST_INTERPRETERS):
        yield program
        words = _first_line(program)
        if not words:
            return
        if os.path.basename(words[0]) != "env":
            program = Path(os.path.normpath(words[0]))
        else:
            name = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
            program = _locate(name, path, Path("/"))
        if not program.is_file():
            raise InvalidArgument("command", f"its interpreter {str(program)!r} does not exist")


def _first_line(program: Path) -> list[str]:
    """The words after ``#!``; none if it has no such line or cannot be read."""
    try:
        with program.open("rb") as file:
            line = file.read(_FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return []
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []


def _needs(program: Path, chain: list[Path]) -> tuple[tuple[Entry, ...], list[Path]]:
    """What a cell must see to run it: entries, and files and folders."""
    for hop in chain:
        prefix = hop.parent.parent if hop.parent.name == "bin" else None
        if prefix is not None and (prefix / "pyvenv.cfg").is_file():
            return _of_python(prefix)
    if is_program(chain[-1]) and chain[-1].name.startswith("python"):
        return _of_python(program)
    trees = [tree for hop in chain if (tree := _tree_of(hop)) is not None]
    return (), [tree.resolve() for tree in dict.fromkeys(trees)] or [chain[-1].resolve()]


def _of_python(environment: Path) -> tuple[tuple[Entry, ...], list[Path]]:
    return PythonRuntime().launch(environment, "command", ()).entries, []


def _tree_of(hop: Path) -> Path | None:
    """The module folder that a file belongs to."""
    if _MODULES in hop.parts:
        return Path(*hop.parts[: hop.parts.index(_MODULES) + 1])
    modules = hop.parent.parent / "lib" / _MODULES
    is_one = hop.parent.name == "bin" and modules.is_dir() and not too_wide(modules)
    return modules if is_one and not is_system(modules) else None


def _is_shown(entry: Entry, folders: tuple[Path, ...], entries: dict[Entry, None]) -> bool:
    return entry in entries or any(is_inside(entry.target, folder) for folder in folders)
