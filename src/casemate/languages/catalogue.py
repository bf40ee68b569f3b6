"""All languages that casemate runs. To add one, add its folder and its line in `_RUNTIMES`."""

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

# The runtime of each language, then its aliases.
_RUNTIMES = {
    "python": ("casemate.languages.python.runtime:PythonRuntime", "py", "python3"),
    "node": ("casemate.languages.node.runtime:NodeRuntime", "nodejs", "javascript", "js", "typescript", "ts"),
    "shell": ("casemate.languages.shell.runtime:ShellRuntime", "bash", "sh"),
}
LANGUAGES = tuple(_RUNTIMES)
_LANGUAGE_OF = {name: language for language, (_, *others) in _RUNTIMES.items() for name in (language, *others)}
LANGUAGE_NAMES = (*LANGUAGES, *(name for name in _LANGUAGE_OF if name not in LANGUAGES))


@cache
def _runtime(language: str) -> Runtime:
    module, _, runtime = _RUNTIMES[language][0].partition(":")
    return cast("Runtime", getattr(import_module(module), runtime)())


def runtimes() -> Iterator[Runtime]:
    """The shared runtime of each language, loaded on demand."""
    return map(_runtime, LANGUAGES)


def runtime_for(language: str) -> Runtime:
    """The runtime for a language name or alias. Raises :class:`casemate.InvalidArgument`, which lists the languages."""
    known = _LANGUAGE_OF.get(language.lower()) if isinstance(language, str) else None
    if known is None:
        names = ", ".join(map(repr, LANGUAGES))
        raise InvalidArgument("language", f"{language!r} is not supported; give one of {names}")
    return _runtime(known)


def session_runtime(language: str) -> Runtime:
    """The runtime of a session in ``language``. Raises :class:`casemate.InvalidArgument`, including for a dialect that
    only whole programs may use."""
    runtime = runtime_for(language)
    if language.lower() in runtime.default_names:
        raise InvalidArgument(
            "language",
            f"a session's steps cannot be {language}",
            remediation=f"Run it as a whole program, or give the session {runtime.language!r}.",
        )
    return runtime


def launch_probe(name: str, arguments: tuple[str, ...]) -> Launch:
    """How to start a program of a wall's self-test, on casemate's own interpreter."""
    return runtime_for("python").launch(None, name, arguments)


def language_of(file_name: str) -> str | None:
    """The language of a program by its file's ending, or None."""
    ending = PurePath(file_name).suffix.lower()
    return next((runtime.language for runtime in runtimes() if ending in runtime.extensions), None)
