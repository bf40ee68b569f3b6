"""Names of packages as rules compare them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A name and at most one exact version: no extras, no ranges, no addresses, paths or options.
_PYTHON = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_-]{1,64}))?"
)
_NODE = re.compile(
    r"(?P<name>(?:@[a-z0-9][a-z0-9._-]{0,99}/)?[a-z0-9][a-z0-9._-]{0,99})(?:@(?P<version>[0-9][A-Za-z0-9.+-]{0,63}))?"
)


@dataclass(frozen=True, slots=True)
class Package:
    """``name`` as its registry normalises it; ``version``: None for whichever."""

    language: str
    name: str
    version: str | None = None

    def covers(self, other: Package) -> bool:
        """Whether ``other`` is this package, and of this version where one is named."""
        same = (self.language, self.name) == (other.language, other.name)
        return same and self.version in (None, other.version)

    def __str__(self) -> str:
        mark = "==" if self.language == "python" else "@"
        return self.name if self.version is None else f"{self.name}{mark}{self.version}"


def package(text: object, language: object = "python") -> Package | None:
    """The package that ``text`` names (``numpy``, ``numpy==2.1``, ``@types/node@22.1.0``); None for anything else.

    Python's names are normalised as PyPI does (PEP 503); those of npm are lower case by its own rule.
    """
    form = {"python": _PYTHON, "node": _NODE}.get(language) if isinstance(language, str) else None
    found = form.fullmatch(text) if form is not None and isinstance(text, str) else None
    if found is None:
        return None
    name = re.sub(r"[-_.]+", "-", found["name"]).lower() if language == "python" else found["name"]
    return Package(str(language), name, found["version"])
