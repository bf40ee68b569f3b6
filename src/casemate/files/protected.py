"""Names of files that tools read and act on later, without asking. No run may create, change or remove them.

The names are in ``protected_names.txt``. They are compared as the most lenient file system would: case folded,
compatibility forms and invisible characters removed, trailing dots and spaces, NTFS streams and its short name for
``.git`` resolved.

Not protected, because changing them is normal work and nothing runs them by itself: ``package.json``, ``Makefile``,
``pyproject.toml``, ``setup.py``, ``conftest.py``, ``.env``, ``.editorconfig``, ``.gitattributes`` and ``.gitignore``,
``.github/workflows`` and other files of build servers, ``Dockerfile``, ``AGENTS.md`` and ``CLAUDE.md``. Review them
before you run or push them.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from casemate.visible import without_unseen

# `.git` itself is decided in code: a folder of that name is a repository, a file points git elsewhere.
_PATTERNS = tuple(
    pattern
    for line in Path(__file__).with_name("protected_names.txt").read_text("ascii").splitlines()
    for pattern in line.partition("#")[0].split()
)

_SHORT_GIT = re.compile(r"git~[0-9]+")
_ANY = ""  # the key of patterns that begin with a wildcard: the empty component before a path's first slash


@dataclass(frozen=True, slots=True)
class Protection:
    """A set of protected names. ``patterns``: see protected_names.txt."""

    patterns: tuple[str, ...] = _PATTERNS
    _by_beginning: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        groups: dict[str, list[str]] = {}
        for pattern in self.patterns:
            first = pattern.partition("/")[0]
            groups.setdefault(_ANY if "*" in first else _fold_piece(first), []).append(pattern)
        object.__setattr__(self, "_by_beginning", {first: tuple(patterns) for first, patterns in groups.items()})

    def reason(self, path: tuple[str, ...], *, folder: bool = False) -> str | None:
        """Why ``path`` is protected, or None. ``folder``: whether it is or becomes a folder."""
        folded = [fold(name) for name in path]
        joined = f"/{'/'.join(folded)}/"
        # Most components begin no pattern, and matching all patterns is slow
        for name in dict.fromkeys(joined.split("/")):
            if (patterns := self._by_beginning.get(name)) and (found := _compile(patterns).search(joined)):
                return f"its name is protected ({patterns[(found.lastindex or 1) - 1]})"
        if folded[-1] == ".git" and not folder:
            return "its name is protected (.git that is not a folder)"
        if folded[-1] == "head" and ".git" not in folded:
            return "its name is protected (HEAD would make its folder a git repository)"
        return None


@functools.lru_cache(maxsize=4096)
def fold(name: str) -> str:
    """The name that the most lenient file system takes ``name`` for."""
    text = unicodedata.normalize("NFKC", without_unseen(name)).casefold()
    text = without_unseen(unicodedata.normalize("NFKC", text)).partition(":")[0].rstrip(" .")
    if text.endswith(".git") or _SHORT_GIT.fullmatch(text):
        return ".git"  # a bare repository `name.git` has the same content
    return text


@functools.cache
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds any of them, each in its own group."""
    return re.compile(f"/(?:{'|'.join(f'({_regex(pattern)})' for pattern in patterns)})/")


def _regex(pattern: str) -> str:
    parts = ["(?:[^/]+/)*" if part == "**" else _component(part) + "/" for part in pattern.split("/")]
    return "".join(parts).removesuffix("/")


def _component(part: str) -> str:
    return "[^/]*".join(re.escape(_fold_piece(piece)) for piece in part.split("*"))


def _fold_piece(piece: str) -> str:
    return fold(piece) if piece.strip(" .") else piece


PROTECTED = Protection()
_PIECES = tuple(tuple(map(_fold_piece, pattern.split("/"))) for pattern in _PATTERNS)
_OUTER = frozenset(piece for pieces in _PIECES for piece in pieces[:-1] if "*" not in piece)
_OUTERMOST = frozenset(pieces[0] for pieces in _PIECES if "**" in pieces)  # names are protected at any depth in these


def holds_protected(path: tuple[str, ...]) -> bool:
    """Whether a folder at ``path`` may hold names that are protected because they are in it."""
    folded = tuple(map(fold, path))
    return folded[-1] in _OUTER or not _OUTERMOST.isdisjoint(folded)
