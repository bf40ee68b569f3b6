"""Patterns of rules for argument values and commands. Pure.

Patterns of values are anchored and match canonical values only: a path must be resolved before it is checked. A rule
that allows reads a pattern *narrowly*, as the least that it can mean. A rule that denies or asks reads it widely, so
that it also covers ambiguous values.

Commands are lists of whole words, never text for a shell. ``*`` matches one word; ``**`` at the end matches any number.
In a rule that allows, neither matches an option (a word that begins with ``-``), a word with ``..`` or one with control
characters. In a rule that denies or asks they match any word. The program's name is never a wildcard.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from casemate.errors import InvalidArgument
from casemate.policy.canonical import canonical
from casemate.policy.shown import shown_value
from casemate.visible import is_plain

_FORMS = ("exact", "any", "one_of", "between", "like", "path")
_NO_WORD = re.compile(
    r"[^A-Za-z0-9_.-]|\.(?=\.)|(?<=\.)\."
)  # ends a `*` of `like`, so that it never matches a path, a query or a second line
_SHELL_MARKS = frozenset("*?[]{}~$\\`;|&<>%")  # a shell would expand them or act on them
_MOST_PATTERN = 4096  # characters
_MOST_VALUE = 65_536  # characters; legitimate names and paths are shorter, and a hostile one costs time


class Pattern(Protocol):
    def covers(self, value: Any, *, narrowly: bool) -> bool:
        """Whether the canonical ``value`` matches; ``narrowly`` as in a rule that allows."""


@dataclass(frozen=True, slots=True)
class ExactValue:
    """One of several values, each as canonical JSON."""

    texts: frozenset[bytes]

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        try:
            return canonical(value) in self.texts
        except InvalidArgument:
            return not narrowly

    def __str__(self) -> str:
        return " or ".join(text.decode() for text in sorted(self.texts))


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Any value, or a missing argument."""

    def covers(self, value: Any, *, narrowly: bool) -> bool:  # noqa: ARG002 - part of the protocol
        return True

    def __str__(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class NumberBetween:
    low: float
    high: float

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return not narrowly
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Like:
    """A whole text. ``*`` matches one or more ASCII letters, digits, ``_``, ``-`` and single dots. No matched dot may
    be next to another dot, even one of the pattern, so only a literal ``..`` matches ``..``."""

    text: str

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        if not isinstance(value, str) or len(value) > _MOST_VALUE:
            return not narrowly
        return _matches_by_words(self.text, value) if narrowly else _matches(self.text, value)

    def __str__(self) -> str:
        return f"like {shown_value(self.text)}"


@dataclass(frozen=True, slots=True)
class PathLike:
    """A path, component by component. ``*`` matches within one component, ``**`` whole components: a last ``**`` one or
    more, others zero or more. Neither matches ``.`` or ``..``. In a rule that allows, neither matches a leading dot, a
    name that begins or ends with a space, or shell characters.

    Values are compared as they are; no shell of casemate reads them. So wildcards match characters that are common in
    file names and harmless alone: inner spaces, quotes, parentheses, ``!`` and ``#``. They match no space at the end of
    a name: an approver cannot see it, and a program that splits ``/project/a /etc/b`` at spaces gets a path elsewhere.
    """

    parts: tuple[str, ...]

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        if not isinstance(value, str) or len(value) > _MOST_VALUE or not is_canonical_path(value):
            return not narrowly
        return _match_parts(self.parts, tuple(value.split("/")), narrowly)

    def __str__(self) -> str:
        return f"path {shown_value('/'.join(self.parts))}"


def pattern(given: Any, *, narrowly: bool) -> Pattern:
    """Parse a rule's pattern for one argument: a plain value for exactly that value, or a mapping with one of the names
    ``exact``, ``any``, ``one_of``, ``between``, ``like`` and ``path``. Raises ``ValueError`` for an invalid pattern;
    with ``narrowly`` also for one that is too wide."""
    if not isinstance(given, Mapping):
        return ExactValue(frozenset({_canonical(given)}))
    if len(given) != 1 or next(iter(given)) not in _FORMS:
        shown = shown_value({str(name): repr(value) for name, value in given.items()})
        raise ValueError(f"{shown} is not a pattern; write {{exact: VALUE}}, or one of {', '.join(_FORMS[1:])}")
    form, value = next(iter(given.items()))
    match form:
        case "exact":
            return ExactValue(frozenset({_canonical(value)}))
        case "one_of":
            if not isinstance(value, list | tuple) or not value:
                raise ValueError("one_of takes a list of values")
            return ExactValue(frozenset(_canonical(one) for one in value))
        case "any":
            if value is not True:
                raise ValueError("write {any: true} for any value")
            return AnyValue()
        case "between":
            return _between(value)
        case "like":
            return _like(value, narrowly)
        case _:
            return _path(value, narrowly)


def is_canonical_path(path: str) -> bool:
    """Whether ``path`` is resolved and composed (NFC), without backslashes or invisible characters."""
    parts = path.removeprefix("/").split("/")
    sound = is_plain(path, spaces=True) and unicodedata.is_normalized("NFC", path) and "\\" not in path
    return sound and not any(part in ("", ".", "..") for part in parts)


def _match_parts(parts: tuple[str, ...], names: tuple[str, ...], narrowly: bool) -> bool:
    """Whether the components ``names`` match ``parts``. Computes for each part how many first names it can end at."""
    fits = [True, *(False for _ in names)]  # fits[n]: the parts so far match exactly the first n names
    for place, part in enumerate(parts):
        if part != "**":
            fits = [False, *(fits[n] and _stands(part, name, narrowly) for n, name in enumerate(names))]
            continue
        at_least_one = narrowly and place == len(parts) - 1
        row = [fits[0] and not at_least_one]
        for n, name in enumerate(names):
            goes_on = (fits[n] or row[n]) and _stands("*", name, narrowly)
            row.append(goes_on or (fits[n + 1] and not at_least_one))
        fits = row
    return fits[-1]


def _stands(part: str, name: str, narrowly: bool) -> bool:
    """Whether one component of a pattern matches ``name``. The first component of an absolute path is empty."""
    if "*" not in part:
        return part == name
    if narrowly and (not name or _SHELL_MARKS & set(name) or name != name.strip() or name[0] == "." != part[0]):
        return False
    return _matches(part, name)


def _matches(text: str, value: str) -> bool:
    """Whether ``value`` matches ``text``, where ``*`` is any text or none. Each piece between two stars is matched at
    its first place, which leaves the most room for the rest, so one pass suffices."""
    first, *others = text.split("*")
    if not others:
        return value == text
    *inner, last = others
    at, end = len(first), len(value) - len(last)
    if at > end or not value.startswith(first) or not value.endswith(last):
        return False
    for piece in inner:
        found = value.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _matches_by_words(text: str, value: str) -> bool:
    """Whether ``value`` matches ``text``, where ``*`` is one or more word characters. The value consists of runs of
    such characters, and a star stays within one run. An earlier start in a run can match everything that a later start
    can, so the first start in each run suffices."""
    first, *others = text.split("*")
    if not others:
        return value == text
    *inner, last = others
    if not value.startswith(first) or not value.endswith(last):
        return False
    ends = [found.start() for found in _NO_WORD.finditer(value)] + [len(value)]
    begins = [len(first)]  # where the next star may begin: the first such place of each run
    for piece in inner:
        begin_of: dict[int, int] = {}
        for begin in begins:
            for after in _after(piece, value, begin, ends[bisect_left(ends, begin)]):
                run = bisect_left(ends, after)
                begin_of[run] = min(after, begin_of.get(run, after))
        begins = list(begin_of.values())
    end = len(value) - len(last)
    return any(begin < end <= ends[bisect_left(ends, begin)] for begin in begins)


def _after(piece: str, value: str, begin: int, end: int) -> Iterator[int]:
    """Yield where ``piece`` can end after a star that begins at ``begin`` in a run that ends at ``end``: at its first
    place in the run, and at the only place across the run's end."""
    broken = _NO_WORD.search(piece)
    across = -1
    if broken is not None:
        across = end - broken.start()
    else:
        if (found := value.find(piece, begin + 1, end)) >= 0:
            yield found + len(piece)
        if piece.endswith("."):  # a following dot makes this dot end the run
            across = end - len(piece) + 1
    if across > begin and value.startswith(piece, across):
        yield across + len(piece)


def _between(value: Any) -> NumberBetween:
    numbers = value if isinstance(value, list | tuple) else ()
    sound = len(numbers) == 2 and all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    if not sound or not numbers[0] <= numbers[1]:
        raise ValueError("between takes the smallest and the largest number, such as [1, 100]")
    return NumberBetween(float(numbers[0]), float(numbers[1]))


def _like(value: Any, narrowly: bool) -> Like:
    text = _text("like", value)
    if narrowly and not any(character.isalnum() for character in text.replace("*", "")):
        raise ValueError(
            f"{value!r} is too wide: it must contain a letter or a digit; write {{any: true}} for any value"
        )
    if "**" in text:
        raise ValueError(f"{value!r}: '*' is the only wildcard, and one is enough")
    return Like(text)


def _path(value: Any, narrowly: bool) -> PathLike:
    text = _text("path", value)
    parts = tuple(text.split("/"))
    named = parts[1:] if text.startswith("/") else parts
    if any(part in ("", ".", "..") for part in named):
        raise ValueError(f"{value!r} is not a canonical path: it has an empty component, '.' or '..'")
    if not unicodedata.is_normalized("NFC", text):
        raise ValueError(f"{value!r} is not composed (NFC), so it matches no canonical path")
    if any("**" in part and part != "**" for part in named):
        raise ValueError(f"{value!r}: '**' must be a whole component")
    if narrowly and "*" in named[0]:
        raise ValueError(f"{value!r} is too wide: it must begin with a name, as in '/project/**'")
    return PathLike(parts)


def _text(form: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MOST_PATTERN:
        raise ValueError(f"{form} takes a text that is not empty, of at most {_MOST_PATTERN} characters")
    if not is_plain(value, spaces=True) or set(value) & set("?[]\\"):
        raise ValueError(
            f"{value!r}: '*' is the only wildcard, and '?', '[', ']', '\\' and invisible characters are not allowed in "
            "patterns; write {exact: VALUE}"
        )
    return value


def _canonical(value: Any) -> bytes:
    try:
        return canonical(value)
    except InvalidArgument as error:
        raise ValueError(f"{value!r} {error.problem}") from None


_VERSION = re.compile(r"[-.]?[0-9][0-9.]*\Z")
_OPTION = re.compile(r"-[A-Za-z0-9]\Z|--[A-Za-z0-9][A-Za-z0-9-]*=?\Z")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./*-]+\Z")
_MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class CommandPattern:
    words: tuple[str, ...]  # literal, except for ``*`` and a last ``**``
    options: tuple[str, ...] = ()  # words with "-" that wildcards match; with a final "=", also any value after it

    def covers(self, argv: object, *, narrowly: bool) -> bool:
        """Whether ``argv``, a list of words, matches; ``narrowly`` as in a rule that allows."""
        if not isinstance(argv, list | tuple) or not argv or not all(isinstance(word, str) for word in argv):
            return not narrowly  # an invalid command is ambiguous
        fixed, rest = (self.words[:-1], True) if self.words[-1] == "**" else (self.words, False)
        if len(argv) < len(fixed) or (len(argv) > len(fixed) and not rest):
            return False
        heads = all(
            self._stands_for(word, narrowly) if pattern == "*" else word == pattern
            for pattern, word in zip(fixed, argv, strict=False)
        )
        return heads and all(self._stands_for(word, narrowly) for word in argv[len(fixed) :])

    def _stands_for(self, word: str, narrowly: bool) -> bool:
        if not narrowly or word in self.options:
            return True
        name, equals, value = word.partition("=")
        if equals and name + equals in self.options:
            word = value
        return bool(word) and not word.startswith("-") and ".." not in word.split("/") and is_plain(word, spaces=True)

    def __str__(self) -> str:
        return " ".join((*self.words, *(f"[{option}]" for option in self.options)))


def command(given: object, options: object = (), *, narrowly: bool) -> CommandPattern:
    """Parse a rule's command pattern: a list of words, or plain words separated by spaces. Wildcards match ``options``.
    Raises ``ValueError`` if it is empty, has shell syntax, has no program name or has ``*`` within a word. With
    ``narrowly`` (a rule that allows) it also refuses a wildcard after a program that can run programs."""
    words = _words(given)
    if not words or not words[0].strip():
        raise ValueError("names no program; write a list of words such as [wc, -l, '*']")
    program = words[0]
    if "*" in program or not is_plain(program, spaces=True) or program.startswith("-"):
        raise ValueError(f"{program!r} is not a program's name; the first word must be a name")
    for place, word in enumerate(words):
        if "**" in word and (word != "**" or place != len(words) - 1):
            raise ValueError("'**' must be a whole word, and the last")
        if "*" in word and word not in ("*", "**"):
            raise ValueError(f"{word!r} has a wildcard within a word; '*' is one whole word")
    if narrowly and any(word in ("*", "**") for word in words) and runs_programs(program):
        raise ValueError(
            f"is too wide: {program!r} can run other programs or write anywhere, so a wildcard after it "
            "allows anything; write the whole command"
        )
    if not isinstance(options, list | tuple) or not all(isinstance(one, str) for one in options):
        raise ValueError("options must be a list of words that begin with '-'")
    if bad := [one for one in options if not _OPTION.match(one)]:
        raise ValueError(f"{bad[0]!r} is not an option; write '-n', '--stat' or '--format='")
    return CommandPattern(words, tuple(options))


def runs_programs(program: str) -> bool:
    """Whether ``program`` is known by its name, in any folder and version, to be able to run other programs."""
    name = program.rpartition("/")[2].casefold()
    return bool({name, base_name(name)} & _runners())


def base_name(program: str) -> str:
    """Return a program's name without folder and version: ``git`` for ``/usr/bin/git-2.40``."""
    return _VERSION.sub("", program.rpartition("/")[2].casefold().removesuffix(".exe"))


@cache
def _runners() -> frozenset[str]:
    """Programs that can run other programs or write anywhere: by purpose, by option or by input. A wildcard for one
    would allow anything. ``running_programs.txt`` gives the reason for each."""
    lines = Path(__file__).with_name("running_programs.txt").read_text("ascii").splitlines()
    return frozenset(name for line in lines for name in line.partition("#")[0].split())


def _words(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        words = given.split()
        bad = next((word for word in words if not _PLAIN_WORD.match(word)), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is not a plain word, and no shell reads it; write a list of words")
        return tuple(words)
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ValueError(f"{given!r} is not a command; write a list of words such as [wc, -l, '*']")
    if len(given) > _MOST_WORDS:
        raise ValueError(f"has more than {_MOST_WORDS} words")
    return tuple(given)
