"""What a rule says about the value of one argument and about a command. Pure.

Every pattern of a value is anchored and matches canonical values only: a path is resolved before it is asked about. A
rule that allows reads a pattern *narrowly*, as the least that it can mean; a rule that denies or asks reads it widely,
so that a value that cannot be told from one that is meant counts as meant.

Commands are lists of whole words, never text that a shell would read. ``*`` is exactly one word, ``**`` at the end any
number of them. In a rule that allows, neither stands for an option (a word that begins with ``-``), for one with ``..``
in it, or for one with control characters. In a rule that denies or asks they stand for anything. The program itself is
always named.
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
)  # where `*` of `like` ends: never a path, a query or another line
_SHELL_MARKS = frozenset("*?[]{}~$\\`;|&<>%")  # another reader might expand them, or act on them
_MOST_PATTERN = 4096  # characters
_MOST_VALUE = 65_536  # characters; no name or path that is meant is longer, and a hostile one costs time


class Pattern(Protocol):
    """What a value must be like."""

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        """Whether the canonical ``value`` is meant; ``narrowly``: as a rule that allows reads it."""


@dataclass(frozen=True, slots=True)
class ExactValue:
    """One value, or one of several, each as canonical JSON."""

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
    """Any value, or none at all."""

    def covers(self, value: Any, *, narrowly: bool) -> bool:  # noqa: ARG002 - as every pattern
        return True

    def __str__(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class NumberBetween:
    """A number from ``low`` to ``high``, both included."""

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
    """A whole text in which ``*`` stands for one or more letters, digits, ``_``, ``-`` and single dots (ASCII),
    which stand beside no other dot, the pattern's own included: ``..`` is never meant unless it is spelled out."""

    text: str

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        if not isinstance(value, str) or len(value) > _MOST_VALUE:
            return not narrowly
        return _matches_by_words(self.text, value) if narrowly else _matches(self.text, value)

    def __str__(self) -> str:
        return f"like {shown_value(self.text)}"


@dataclass(frozen=True, slots=True)
class PathLike:
    """A path, component by component: ``*`` stands within one component, ``**`` for whole components (the last one for
    one or more, others for none or more). Neither stands for ``.`` or ``..``; where a rule allows, nor for a name that
    begins with a dot, begins or ends with a space, or holds what a shell would expand or act on.

    A value is compared as it is, and no shell of ours ever reads it. So what is usual in names of files is left to
    wildcards: spaces within a name, quotes, parentheses, ``!`` and ``#``, which alone make nobody run or read anything
    else. A space at the end of a name is nothing that somebody who approves can see, and whoever splits
    ``/project/a /etc/b`` at spaces has a path of another tree.
    """

    parts: tuple[str, ...]

    def covers(self, value: Any, *, narrowly: bool) -> bool:
        if not isinstance(value, str) or len(value) > _MOST_VALUE or not is_canonical_path(value):
            return not narrowly
        return _match_parts(self.parts, tuple(value.split("/")), narrowly)

    def __str__(self) -> str:
        return f"path {shown_value('/'.join(self.parts))}"


def pattern(given: Any, *, narrowly: bool) -> Pattern:
    """The pattern that a rule gives for one argument: a plain value for exactly that, or a mapping with one of the
    names ``exact``, ``any``, ``one_of``, ``between``, ``like`` and ``path``.

    Raises ``ValueError`` saying what is wrong with it; where ``narrowly``, also for what is too wide to be meant.
    """
    if not isinstance(given, Mapping):
        return ExactValue(frozenset({_canonical(given)}))
    if len(given) != 1 or next(iter(given)) not in _FORMS:
        raise ValueError(
            f"{shown_value(_plain(given))} is no pattern; write {{exact: VALUE}}, or one of {', '.join(_FORMS[1:])}"
        )
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
    """Whether ``path`` is spelled in the one way that resolving gives: no ``.``, ``..``, empty component or backslash,
    no character that is not shown, composed (NFC)."""
    parts = path.removeprefix("/").split("/")
    sound = is_plain(path, spaces=True) and unicodedata.is_normalized("NFC", path) and "\\" not in path
    return sound and not any(part in ("", ".", "..") for part in parts)


def _match_parts(parts: tuple[str, ...], names: tuple[str, ...], narrowly: bool) -> bool:
    """Whether ``names`` are as ``parts`` say: part by part, how many of the first names fit."""
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
    """Whether one component of a pattern stands for the component ``name``; the first of an absolute path is empty."""
    if "*" not in part:
        return part == name
    if narrowly and (not name or _SHELL_MARKS & set(name) or name != name.strip() or name[0] == "." != part[0]):
        return False
    return _matches(part, name)


def _matches(text: str, value: str) -> bool:
    """Whether ``value`` is ``text`` with anything, or nothing, for each ``*``. Each piece between two stars is taken
    where it comes first, which leaves most for the others: one pass, whatever the value."""
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
    """Whether ``value`` is ``text`` with one or more characters of a word for each ``*``.

    The value falls into runs of such characters, and a star stays within one. Of two places in a run where a star may
    begin, the earlier can do all that the later can; so one place in each run is enough to go on from.
    """
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
    """Where ``piece`` may be over, after a star that begins at ``begin`` in a run that ends at ``end``: where it comes
    first within the run, and where it lies across the run's end, for which there is one place only."""
    broken = _NO_WORD.search(piece)
    across = -1
    if broken is not None:
        across = end - broken.start()
    else:
        if (found := value.find(piece, begin + 1, end)) >= 0:
            yield found + len(piece)
        if piece.endswith("."):  # the dot ends the run where another follows
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
            f"{value!r} is too wide: it must hold a letter or a digit; write {{any: true}} where any is meant"
        )
    if "**" in text:
        raise ValueError(f"{value!r}: '*' is the only wildcard, and one is enough")
    return Like(text)


def _path(value: Any, narrowly: bool) -> PathLike:
    text = _text("path", value)
    parts = tuple(text.split("/"))
    named = parts[1:] if text.startswith("/") else parts
    if any(part in ("", ".", "..") for part in named):
        raise ValueError(f"{value!r} is no canonical path: it has an empty component, '.' or '..'")
    if not unicodedata.is_normalized("NFC", text):
        raise ValueError(f"{value!r} is not composed (NFC), and no canonical path is like it")
    if any("**" in part and part != "**" for part in named):
        raise ValueError(f"{value!r}: '**' is a component of its own")
    if narrowly and "*" in named[0]:
        raise ValueError(f"{value!r} is too wide: it must begin with a name, as in '/project/**'")
    return PathLike(parts)


def _text(form: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MOST_PATTERN:
        raise ValueError(f"{form} takes a text that is not empty, of at most {_MOST_PATTERN} characters")
    if not is_plain(value, spaces=True) or set(value) & set("?[]\\"):
        raise ValueError(
            f"{value!r}: '*' is the only wildcard, and '?', '[', ']', '\\' or characters that do not show are not for "
            "patterns; write {exact: VALUE}"
        )
    return value


def _canonical(value: Any) -> bytes:
    try:
        return canonical(value)
    except InvalidArgument as error:
        raise ValueError(f"{value!r} {error.problem}") from None


def _plain(given: Mapping[str, Any]) -> Any:
    return {str(name): repr(value) for name, value in given.items()}


_VERSION = re.compile(r"[-.]?[0-9][0-9.]*\Z")
_OPTION = re.compile(r"-[A-Za-z0-9]\Z|--[A-Za-z0-9][A-Za-z0-9-]*=?\Z")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./*-]+\Z")
_MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A pattern for an argument vector: ``words``, each literal but for ``*`` and a last ``**``. ``options``: words
    that begin with "-" for which a wildcard stands, too; one that ends with "=" with any value behind it."""

    words: tuple[str, ...]
    options: tuple[str, ...] = ()

    def covers(self, argv: object, *, narrowly: bool) -> bool:
        """Whether ``argv`` (a list of words) is such a command; ``narrowly`` as rules that allow read patterns."""
        if not isinstance(argv, list | tuple) or not argv or not all(isinstance(word, str) for word in argv):
            return not narrowly  # what is no command cannot be told from one that is meant
        fixed, rest = (self.words[:-1], True) if self.words[-1] == "**" else (self.words, False)
        if len(argv) < len(fixed) or (len(argv) > len(fixed) and not rest):
            return False
        heads = all(
            self._stands_for(word, narrowly) if pattern == "*" else word == pattern
            for pattern, word in zip(fixed, argv, strict=False)
        )
        return heads and all(self._stands_for(word, narrowly) for word in argv[len(fixed) :])

    def _stands_for(self, word: str, narrowly: bool) -> bool:
        """Whether a wildcard stands for ``word``."""
        if not narrowly or word in self.options:
            return True
        name, equals, value = word.partition("=")
        if equals and name + equals in self.options:
            word = value
        return bool(word) and not word.startswith("-") and ".." not in word.split("/") and is_plain(word, spaces=True)

    def __str__(self) -> str:
        return " ".join((*self.words, *(f"[{option}]" for option in self.options)))


def command(given: object, options: object = (), *, narrowly: bool) -> CommandPattern:
    """The command pattern that a rule gives, as a list of words or as plain words with spaces between them, and the
    ``options`` that its wildcards stand for.

    Raises ``ValueError`` saying what is wrong with it: empty, a shell's syntax, a program that is no name, ``*`` within
    a word; and where ``narrowly`` (a rule that allows) a wildcard for a program that can run programs.
    """
    words = _words(given)
    if not words or not words[0].strip():
        raise ValueError("names no program; write a list of words such as [wc, -l, '*']")
    program = words[0]
    if "*" in program or not is_plain(program, spaces=True) or program.startswith("-"):
        raise ValueError(f"{program!r} is no program's name; the first word is always named")
    for place, word in enumerate(words):
        if "**" in word and (word != "**" or place != len(words) - 1):
            raise ValueError("'**' is a word of its own, and the last")
        if "*" in word and word not in ("*", "**"):
            raise ValueError(f"{word!r} has a wildcard within a word; '*' is one whole word")
    if narrowly and any(word in ("*", "**") for word in words) and runs_programs(program):
        raise ValueError(
            f"is too wide: {program!r} can run other programs or write anywhere, so a wildcard after it "
            "allows anything; write the whole command"
        )
    if not isinstance(options, list | tuple) or not all(isinstance(one, str) for one in options):
        raise ValueError("options are a list of words that begin with '-'")
    if bad := [one for one in options if not _OPTION.match(one)]:
        raise ValueError(f"{bad[0]!r} is no option; write '-n', '--stat' or '--format='")
    return CommandPattern(words, tuple(options))


def runs_programs(program: str) -> bool:
    """Whether ``program``, by its name, whatever its folder and version, is known to be able to run another."""
    name = program.rpartition("/")[2].casefold()
    return bool({name, base_name(name)} & _runners())


def base_name(program: str) -> str:
    """A program's name without folder and version: ``git`` of ``/usr/bin/git-2.40``."""
    return _VERSION.sub("", program.rpartition("/")[2].casefold().removesuffix(".exe"))


@cache
def _runners() -> frozenset[str]:
    """Programs whose job is, or one of whose options or inputs can be, to run another, or to write where they like: a
    rule with a wildcard for one of them would allow anything. ``running_programs.txt`` has each with the reason."""
    lines = Path(__file__).with_name("running_programs.txt").read_text("ascii").splitlines()
    return frozenset(name for line in lines for name in line.partition("#")[0].split())


def _words(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        words = given.split()
        bad = next((word for word in words if not _PLAIN_WORD.match(word)), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is more than a plain word, and no shell reads it; write a list of words")
        return tuple(words)
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ValueError(f"{given!r} is no command; write a list of words such as [wc, -l, '*']")
    if len(given) > _MOST_WORDS:
        raise ValueError(f"has more than {_MOST_WORDS} words")
    return tuple(given)
