"""The interface that every language has, and the few facts that all of them share.

Above it is planning, which turns a :class:`casemate.model.plan.Launch` into a cell; below it is nothing: a runtime
looks at the file system and decides, and starts nothing of the user's."""

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

# Bound in every cell as they are on the host.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
CELL_PATH = f"{SYSTEM_PATH}:{PROGRAMS}"

# Libraries that start a thread for each core of the host, whatever the cell may use.
THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Environment = str | PathLike[str] | Sequence[str] | None


class Runtime(Protocol):
    """One language.

    ``language`` is its public name, ``extensions`` the endings of its programs' names, the usual one first,
    ``default_name`` a program's name when the caller gave none, ``default_names`` those of dialects that only whole
    programs may be in, by the names that people use for these;
    ``packages_of``: the language whose packages its programs have on their PATH, where it has none of its own;
    ``goes_by_endings``: whether a program of another ending would be read otherwise;
    ``reports``: whether its guest hook speaks on the control pipe (when not, the program must not hold it);
    ``reserve``: bytes that its interpreter reserves at start and never touches, to be added to RLIMIT_DATA;
    ``holds_nul``: whether a step may be given NUL bytes to read; ``session``: its interpreter that takes steps;
    ``checker``: what looks at its programs without running them;
    ``asks_for``: what of a session's steps the rules about commands are asked for.
    """

    language: str
    extensions: tuple[str, ...]
    default_name: str
    default_names: Mapping[str, str] = {}
    packages_of: str = ""
    goes_by_endings: bool = False
    reports: bool
    reserve: int = 0
    holds_nul: bool = True
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
        """What runs in cells besides programs of this language, loaded when it is needed."""
        return import_module(f"casemate.languages.{self.language}.programs")

    @abstractmethod
    def examples(self, preload: tuple[str, ...] | None) -> tuple[str, ...]:
        """A program of each kind for which other cells are kept ready; ``preload`` as the sandbox has it."""

    @abstractmethod
    def session_env(self, env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        """What to change in the environment ``env`` of a session, of which the caller ``asked`` for a part, so that
        its programs find pip and npm, which ask the host, and what these have installed."""

    def is_variable(self, name: str) -> bool:
        """Whether a variable of a session may be called so."""
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

        Raises :class:`casemate.InvalidArgument` for an ``environment`` that cannot be used,
        :class:`casemate.RuntimeMissing` when there is no interpreter, and :class:`casemate.Unavailable` for
        what this version cannot do.
        """

    @abstractmethod
    def ready_start(self, asked: RequestedProgram) -> ReadyStart | str:
        """How a process of this language waits for such a program, or why it could not be begun in one."""

    @abstractmethod
    def find_installation(self, environment: Environment = None) -> LanguageInstallation:
        """What there is, found out without starting it each time. Raises nothing."""


def merged_env(base: Mapping[str, str], launch: Launch, asked: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a program: ``base``, then the runtime's, then what the caller ``asked`` for.

    A caller's PYTHONPATH comes after ours: a Python program's hook, which takes itself away again, and what children
    of any program may import.
    """
    before = {**base, **launch.env}
    merged = {**before, **asked}
    if "PYTHONPATH" in before and asked.get("PYTHONPATH"):
        merged["PYTHONPATH"] = f"{before['PYTHONPATH']}:{asked['PYTHONPATH']}"
    return merged


def prepend_path(folders: tuple[str, ...], env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """PATH with ``folders`` first, unless the caller asked for one."""
    return {} if "PATH" in asked else {"PATH": ":".join((*folders, env["PATH"]))}


@dataclass(frozen=True, slots=True)
class LanguageInstallation:
    """What this machine has for a language: ``version`` and ``path``, or ``missing`` and the ``remedy``, a command.
    ``source``: whose it is, in words."""

    language: str
    version: str = ""
    path: str = ""
    missing: str = ""
    remedy: str = ""
    source: str = ""
