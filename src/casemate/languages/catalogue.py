"""Every language that casemate runs. To add one: its folder, and its line in `_RUNTIMES`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from casemate.languages.runtime import Runtime
    from casemate.model.plan import Launch

_RUNTIMES = {
    "python": "casemate.languages.python.runtime:PythonRuntime",
    "node": "casemate.languages.node.runtime:NodeRuntime",
    "shell": "casemate.languages.shell.runtime:ShellRuntime",
}
LANGUAGES = tuple(_RUNTIMES)


@cache
def _runtime(language: str) -> Runtime:
    module, _, runtime = _RUNTIMES[language].partition(":")
    return cast("Runtime", getattr(import_module(module), runtime)())


def runtimes() -> Iterator[Runtime]:
    """Each language's runtime, always the same; it is loaded when it is come to: a Python program needs no other."""
    return map(_runtime, LANGUAGES)


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
