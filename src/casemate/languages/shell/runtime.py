"""Shell programs: bash, or sh if there is no bash."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from casemate.errors import RuntimeMissing
from casemate.languages.places import entries_for, hops, stamp_of
from casemate.languages.runtime import SYSTEM_PATH, Environment, LanguageInstallation, Runtime, prepend_path
from casemate.languages.waiting import RequestedProgram, check_order_length, read_at_start, too_special
from casemate.model.plan import GUEST, LAYERED, NODE_PROGRAMS, PROGRAM, Entry, Launch, ReadyStart

_REMEDY = "apt-get install bash"
_FOLDERS = (*SYSTEM_PATH.split(":"), "/run/current-system/sw/bin")
_WAIT = f"{GUEST}/shell_wait.sh"
_COST = 3 << 20  # bytes that a waiting process holds, including its init
# Variables that bash sets itself, or reads when it starts.
_READ_AT_START = re.compile(
    r"BASH|SHELLOPTS|SHLVL|POSIXLY_CORRECT|PS\d|IFS|PWD|OLDPWD|_\Z|ENV\Z|HOSTNAME|HOSTTYPE|MACHTYPE|OSTYPE|"
    r"E?UID\Z|PPID|GROUPS|DIRSTACK|FUNCNAME|LINENO|RANDOM|SRANDOM|SECONDS|EPOCH|OPT|HIST|MAIL|COLUMNS|LINES|"
    r"TERM|TMOUT|COPROC|COMP|PIPESTATUS|REPLY|GLOBIGNORE|EXECIGNORE|FIGNORE|IGNOREEOF|INPUTRC|TIMEFORMAT"
)


class ShellRuntime(Runtime):
    """Plain ``bash main.sh``. It has no hook, so it does not use the control pipe."""

    language = "shell"
    extensions = (".sh", ".bash")
    packages_of = "python"
    default_name = "main.sh"
    reports = False
    holds_nul = False
    asks_for = "each step"

    def launch(
        self,
        environment: Environment,  # noqa: ARG002 - only Python has any
        program_name: str,
        arguments: tuple[str, ...],
        *,
        memory: int | None = None,  # noqa: ARG002 - only Node must be told
        session: bool = False,  # noqa: ARG002
    ) -> Launch:
        shell = _find()
        if shell is None:
            raise RuntimeMissing("shell", "neither bash nor sh was found", remediation=f"Install one: {_REMEDY}")
        version, entries = _look_at(shell)
        return Launch(
            language=self.language,
            version=version,
            entries=entries,
            argv=(str(shell), f"{PROGRAM}/{program_name}", *arguments),
        )

    def ready_start(self, asked: RequestedProgram) -> ReadyStart | str:
        # Bash reads ``BASH_ENV`` before it opens its program.
        why = too_special(asked, self.default_name) or read_at_start(asked, _READ_AT_START)
        if why:
            return why
        program, *rest = asked.launch.argv
        if os.path.basename(program) != "bash":
            return f"{program} cannot wait for a program"
        if asked.arguments:
            return "its program has arguments"
        head = b"# session\n" if asked.session else b""  # see shell_wait.sh
        order = check_order_length(head + _exports(asked) + b"\0")
        if isinstance(order, str):
            return order
        env = {**asked.base_env, "BASH_ENV": _WAIT}
        return ReadyStart((program, *rest), env, order, asked.most, _COST)

    def examples(self, preload: tuple[str, ...] | None) -> tuple[str, ...]:  # noqa: ARG002 - only Python has any
        return (":",)

    def session_env(self, env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        folders = (f"{GUEST}/python_bin", f"{GUEST}/node_bin", NODE_PROGRAMS, f"{LAYERED}/current/bin")
        changed = prepend_path(folders, env, asked)
        if "PYTHONPATH" not in asked:
            changed["PYTHONPATH"] = f"{GUEST}/python_children:{env['PYTHONPATH']}"
        return changed

    def find_installation(self, environment: Environment = None) -> LanguageInstallation:  # noqa: ARG002 - only Python has any
        shell = _find()
        if shell is None:
            return LanguageInstallation(self.language, missing="neither bash nor sh was found", remedy=_REMEDY)
        version, _ = _look_at(shell)
        return LanguageInstallation(self.language, version=version, path=str(shell), source="the system's")


def _exports(asked: RequestedProgram) -> bytes:
    """The variables that differ from those of the waiting process, as shell text."""
    changed = (item for item in asked.env.items() if asked.base_env.get(item[0]) != item[1])
    return os.fsencode("".join(f"export {name}={shlex.quote(value)}\n" for name, value in changed))


def _find() -> Path | None:
    places = (f"{folder}/{name}" for name in ("bash", "sh") for folder in _FOLDERS)
    return next((Path(place) for place in places if os.access(place, os.X_OK)), None)


def _look_at(shell: Path) -> tuple[str, tuple[Entry, ...]]:
    """Its version and what it needs, cached until it is replaced: each disk access delays every run."""
    return _facts_of(shell, stamp_of(shell))


@functools.lru_cache(maxsize=8)
def _facts_of(shell: Path, stamp: tuple[int, int]) -> tuple[str, tuple[Entry, ...]]:  # noqa: ARG001 - part of the key
    """Read the version from the program file, which is faster than to start it. Empty if the file has none."""
    match = re.search(rb"version (\d+\.\d+\.\d+)", shell.read_bytes())
    return match[1].decode() if match else "", entries_for([shell], hops(shell))
