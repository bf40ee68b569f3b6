"""Every language that casemate runs. To add one: a file like shell.py, and its function and its line here."""

from __future__ import annotations

from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from casemate.languages.runtime import Runtime
    from casemate.model.plan import Launch

# Programs of each kind for which other cells are kept ready: those that want what is preloaded, and those that do not.
_EXAMPLES = {"python": ("pass", "import numpy"), "node": ("0",), "shell": (":",)}
LANGUAGES = tuple(_EXAMPLES)


@cache
def _python() -> Runtime:
    from casemate.languages.python.runtime import PythonRuntime

    return PythonRuntime()


@cache
def _node() -> Runtime:
    from casemate.languages.node.runtime import NodeRuntime

    return NodeRuntime()


@cache
def _shell() -> Runtime:
    from casemate.languages.shell.runtime import ShellRuntime

    return ShellRuntime()


def runtimes() -> Iterator[Runtime]:
    """Each language's runtime, always the same; it is loaded when it is come to: a Python program needs no other."""
    return (made() for made in (_python, _node, _shell))


def examples(language: str, preload: tuple[str, ...] | None) -> tuple[str, ...]:
    """Programs of each kind in ``language`` for which cells are kept ready; ``preload`` as the sandbox has it."""
    if language == "python" and preload is not None:
        return ("pass", f"import {preload[0]}") if preload else ("pass",)
    return _EXAMPLES[language]


def runtime_for(language: str) -> Runtime:
    """The runtime that ``language`` names. Raises :class:`casemate.InvalidArgument` naming those that there are."""
    wanted = language.lower() if isinstance(language, str) else language
    for runtime in runtimes():
        if wanted == runtime.language or wanted in runtime.aliases:
            return runtime
    known = ", ".join(repr(runtime.language) for runtime in runtimes())
    raise InvalidArgument("language", f"{language!r} is not one that casemate runs; give one of {known}")


def launch_probe(name: str, arguments: tuple[str, ...]) -> Launch:
    """How a program of a wall's self-test is started: on the interpreter that casemate runs on."""
    return runtime_for("python").launch(None, name, arguments)


def language_of(file_name: str) -> str | None:
    """The language of a program by its file's ending, or None."""
    ending = PurePath(file_name).suffix.lower()
    return next((runtime.language for runtime in runtimes() if ending in runtime.extensions), None)
