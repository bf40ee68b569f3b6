"""The interface of every language, and the facts that all languages share.

Planning uses it to turn a :class:`casemate.model.plan.Launch` into a cell. A runtime only reads the file system and
decides: it starts none of the user's programs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol

from casemate.model.plan import PROGRAMS, Launch, ReadyStart

if TYPE_CHECKING:
    from casemate.languages.checker import Checker
    from casemate.languages.session_program import SessionProgram
    from casemate.languages.waiting import RequestedProgram

# Bound in every cell at the same path.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
CELL_PATH = f"{SYSTEM_PATH}:{PROGRAMS}"

# Libraries read these. Else they start a thread per core of the host, even if a cell may use fewer.
THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Environment = str | PathLike[str] | Sequence[str] | None


class Runtime(Protocol):
    """One language."""

    language: str  # its public name
    extensions: tuple[str, ...]  # endings of its programs' names, the usual one first
    default_name: str  # a program's name if the caller gives none
    # The same for dialects that only whole programs may use, by their names.
    default_names: Mapping[str, str] = {}
    packages_of: str = ""  # the language whose packages are on its programs' PATH, if it has no packages itself
    goes_by_endings: bool = False  # whether the ending of a program's name changes how it is read
    reports: bool  # whether its guest hook uses the control pipe; if not, the program must not hold that
    reserve: int = 0  # bytes that its interpreter reserves and never touches, to be added to RLIMIT_DATA
    holds_nul: bool = True  # whether a step's input may contain NUL bytes
    # Which parts of a session's steps the command rules see
    asks_for: Literal["nothing", "each step", "each command"] = "nothing"

    @property
    def session(self) -> SessionProgram:
        program: SessionProgram = self._programs().SESSION
        return program

    @property
    def checker(self) -> Checker:
        checker: Checker = self._programs().CHECKER
        return checker

    def _programs(self) -> Any:
        """What else runs in cells for this language, loaded on demand."""
        return import_module(f"casemate.languages.{self.language}.programs")

    @abstractmethod
    def examples(self, preload: tuple[str, ...] | None) -> tuple[str, ...]:
        """A program of each kind for which cells are kept ready, given the sandbox's ``preload``."""

    @abstractmethod
    def session_env(self, env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        """The changes to a session's environment ``env`` that let its programs find pip and npm, which ask the host,
        and the packages installed with them. The caller ``asked`` for a part of ``env``."""

    def is_variable(self, name: str) -> bool:
        """Whether ``name`` is a valid name of a variable in a session."""
        return name.isidentifier()

    @abstractmethod
    def launch(
        self,
        environment: Environment,
        program_name: str,
        arguments: tuple[str, ...],
        *,
        memory: int | None = None,
        session: bool = False,
    ) -> Launch:
        """How to start the program ``program_name`` in a cell that may use ``memory`` bytes.

        ``session``: the program is an interpreter that takes steps.

        Raises :class:`casemate.InvalidArgument` for an unusable ``environment``, :class:`casemate.RuntimeMissing` if
        there is no interpreter, and :class:`casemate.Unavailable` for what this version cannot do.
        """

    @abstractmethod
    def ready_start(self, asked: RequestedProgram) -> ReadyStart | str:
        """How a process of this language waits for such a program, or why the program cannot begin in one."""

    @abstractmethod
    def find_installation(self, environment: Environment = None) -> LanguageInstallation:
        """What is installed, from a cache if possible. Raises nothing."""


def merged_env(base: Mapping[str, str], launch: Launch, asked: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a program: ``base``, the runtime's, then the caller's ``asked`` values.

    A caller's PYTHONPATH comes after casemate's, which holds a Python program's hook (which removes itself again) and
    modules that child processes of any program may import.
    """
    before = {**base, **launch.env}
    merged = {**before, **asked}
    if "PYTHONPATH" in before and asked.get("PYTHONPATH"):
        merged["PYTHONPATH"] = f"{before['PYTHONPATH']}:{asked['PYTHONPATH']}"
    return merged


def prepend_path(folders: tuple[str, ...], env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """PATH with ``folders`` first, unless the caller sets PATH."""
    return {} if "PATH" in asked else {"PATH": ":".join((*folders, env["PATH"]))}


@dataclass(frozen=True, slots=True)
class LanguageInstallation:
    """What this machine has for a language: ``version`` and ``path``, or ``missing`` and ``remedy``."""

    language: str
    version: str = ""
    path: str = ""
    missing: str = ""
    remedy: str = ""  # a command
    source: str = ""  # where it comes from, for people
