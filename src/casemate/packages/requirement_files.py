"""Requirements from files: requirements.txt, pyproject.toml with dependency groups, and the head of a script.

Sources: the dependency specifiers, dependency groups and inline script metadata of packaging.python.org (PEP 508, 735
and 723).
"""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

from casemate.errors import InvalidArgument
from casemate.visible import brief

_MOST = 1 << 20  # bytes of a file
_COMMENT = re.compile(r"(^|\s)#.*")
_BLOCK = re.compile(r"(?m)^# /// script\r?$\n(?P<content>(^#(| .*)$\n)+)^# ///\r?$")


def read_file(name: str, argument: str = "with_requirements") -> tuple[str, ...]:
    """The requirements in a file: lines, the dependencies of a pyproject.toml, or its group (``pyproject.toml:GROUP``).

    Raises:
        InvalidArgument: For ``argument``: the file cannot be read, or has a line that is not a requirement.
    """
    try:
        return _read(name)
    except _Wrong as problem:
        raise InvalidArgument(argument, f"{brief(name)} {problem}") from None


def in_script(code: bytes) -> tuple[str, ...]:
    """The dependencies that a Python script declares in its head. Raises ``InvalidArgument``."""
    found = _BLOCK.search(code.decode("utf-8", "replace"))
    if found is None:
        return ()
    text = "\n".join(line[2:] for line in found["content"].splitlines())
    try:
        return _texts(_toml(text).get("dependencies", []))
    except _Wrong as problem:
        raise InvalidArgument("code", f"its # /// script {problem}") from None


class _Wrong(Exception):
    """What is wrong with a file, as the rest of a sentence about it."""


def _read(name: str) -> tuple[str, ...]:
    path, _, group = (name, "", "") if os.path.exists(name) else name.partition(":")
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MOST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise _Wrong(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > _MOST:
        raise _Wrong(f"is longer than {_MOST} characters")
    if path.endswith(".toml"):
        return _of_project(_toml(text), group)
    return tuple(_lines(text))


def _lines(text: str) -> list[str]:
    found = []
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if line := _COMMENT.sub("", line).strip():
            if line.startswith("-"):
                raise _Wrong(f"{brief(line)} is an option of pip, not a requirement; leave it out")
            found.append(line)
    return found


def _of_project(project: dict[str, Any], group: str) -> tuple[str, ...]:
    from packaging.dependency_groups import resolve_dependency_groups

    if not group:
        table = project.get("project")
        return _texts(table.get("dependencies", []) if isinstance(table, dict) else [])
    try:
        return tuple(resolve_dependency_groups(project.get("dependency-groups") or {}, group))
    except (LookupError, ValueError, TypeError, ExceptionGroup) as error:
        raise _Wrong(f"has no group {brief(group)} that can be read: {error}") from None


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _Wrong(f"is not TOML: {error}") from None


def _texts(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _Wrong("its dependencies are not a list of strings")
    return tuple(found)
