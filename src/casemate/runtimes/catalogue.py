"""Every language that casemate runs. To add one: a file like shell.py, and its line here."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument
from casemate.runtimes.node import NodeRuntime
from casemate.runtimes.python import PythonRuntime
from casemate.runtimes.runtime import Installed, Runtime
from casemate.runtimes.shell import ShellRuntime

if TYPE_CHECKING:
    from casemate.model.plan import Launch

RUNTIMES: tuple[Runtime, ...] = (PythonRuntime(), NodeRuntime(), ShellRuntime())

# Programs of each kind for which other cells are kept ready: those that want what is preloaded, and those that do not.
_EXAMPLES = {"python": ("pass", "import numpy"), "node": ("0",), "shell": (":",)}


def examples(language: str, preload: tuple[str, ...] | None) -> tuple[str, ...]:
    """Programs of each kind in ``language`` for which cells are kept ready; ``preload`` as the sandbox has it."""
    if language == "python" and preload is not None:
        return ("pass", f"import {preload[0]}") if preload else ("pass",)
    return _EXAMPLES[language]


def runtime_for(language: str) -> Runtime:
    """The runtime that ``language`` names. Raises :class:`casemate.InvalidArgument` naming those that there are."""
    wanted = language.lower() if isinstance(language, str) else language
    for runtime in RUNTIMES:
        if wanted == runtime.language or wanted in runtime.aliases:
            return runtime
    known = ", ".join(repr(runtime.language) for runtime in RUNTIMES)
    raise InvalidArgument("language", f"{language!r} is not one that casemate runs; give one of {known}")


def launch_probe(name: str, arguments: tuple[str, ...]) -> Launch:
    """How a program of a wall's self-test is started: on the interpreter that casemate runs on."""
    return runtime_for("python").launch(None, name, arguments)


def language_of(file_name: str) -> str | None:
    """The language of a program by its file's ending, or None."""
    ending = PurePath(file_name).suffix.lower()
    return next((runtime.language for runtime in RUNTIMES if ending in runtime.extensions), None)


def installed() -> list[Installed]:
    """What this machine has for each language, or what is missing and the command that helps."""
    return [runtime.installed() for runtime in RUNTIMES]
