"""What may be requested of an installer: names, extras and versions, but no options, addresses or paths.

Sources: PEP 508 (requirements), PEP 440 (versions), PEP 503 (names); npm's validate-npm-package-name and package-spec
pages (names, ranges, tags).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from casemate.errors import InvalidArgument

MOST_REQUIREMENTS = 200
_MOST_CHARACTERS = 300
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-\[\],<>=!~+* ]*")  # PEP 508 without addresses and markers
_WANTED = "Give names with versions, such as 'requests' or 'requests[socks]>=2.31,<3'."
_ARCHIVES = (".whl", ".egg", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".lzma", ".tlz", ".zst")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_BEFORE_HASH = " --hash=sha256:"
_MOST_HASHES = 500

_NODE_NAME = re.compile(r"(?:@[a-z0-9][a-z0-9._-]{0,99}/)?[a-z0-9][a-z0-9._-]{0,99}")
_TAG = r"[A-Za-z][A-Za-z0-9-]{0,60}"
_PART = r"(?:[0-9]{1,16}|[xX*])"
_ONE_VERSION = rf"{_PART}(?:\.{_PART}(?:\.{_PART}(?:-[0-9A-Za-z.-]{{1,60}})?(?:\+[0-9A-Za-z.-]{{1,60}})?)?)?"
_COMPARED = rf"(?:[<>]=?|[=~^])? ?{_ONE_VERSION}"
_RANGE = re.compile(rf"{_TAG}|{_COMPARED}(?:(?: | - | ?\|\| ?){_COMPARED}){{0,7}}")
_FILES = (".tgz", ".tar", ".tar.gz")
_NO_PACKAGES = ("node_modules", "favicon.ico", "mcptools")  # reserved by npm, or by casemate
_NODE_WANTED = "Give names with versions, such as 'left-pad', '@types/node@22.1.0' or 'ms@^2'."


@dataclass(frozen=True, slots=True)
class Requirement:
    """A checked requirement."""

    name: str  # as PyPI normalises it, or npm's
    text: str  # the whole requirement in canonical form
    range: str = ""  # npm's versions
    hashes: frozenset[str] = frozenset()  # SHA-256 of the files it may come in; empty for any


def normalize(name: str) -> str:
    """A project's name in the form that indexes use (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project_in(filename: str) -> tuple[str, str] | None:
    """The normalised name and the version in a wheel's or archive's file name; None if no installer takes it."""
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

    try:
        if filename.endswith(".whl"):
            name, version, *_ = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return normalize(name), str(version)


def project(text: str) -> str | None:
    """``text`` if it is a normalised project name, as in an index path; otherwise None."""
    return text if _NAME.fullmatch(text) and normalize(text) == text else None


_Check = Callable[[object, str], "Requirement"]


def requirements(asked: Sequence[str] | str, argument: str = "packages") -> tuple[Requirement, ...]:
    """Check a list of plain requirements. Raises ``InvalidArgument`` for ``argument``."""
    return _check_each(asked, argument, requirement, _WANTED)


def _check_each(asked: Sequence[str] | str, argument: str, check: _Check, wanted: str) -> tuple[Requirement, ...]:
    if isinstance(asked, str) or not isinstance(asked, Sequence) or not asked:
        raise InvalidArgument(argument, f"{str(asked)[:80]!r} is not a list of packages", remediation=wanted)
    if len(asked) > MOST_REQUIREMENTS:
        raise InvalidArgument(argument, f"{len(asked)} packages; the most is {MOST_REQUIREMENTS}")
    return tuple(check(one, argument) for one in asked)


def requirement(text: object, argument: str = "packages") -> Requirement:
    """Check one requirement. ``--hash=sha256:...`` may follow it, as in the files that pip-compile writes. Raises
    ``InvalidArgument``.

    Markers are refused, too: the choice of packages must not depend on something that the reader does not see.
    """
    from packaging.requirements import InvalidRequirement
    from packaging.requirements import Requirement as Parsed

    plain, hashes = _with_hashes(text, argument)
    if not isinstance(plain, str) or len(plain) > _MOST_CHARACTERS or not _PLAIN.fullmatch(plain):
        raise _not_plain(plain, argument)
    try:
        parsed = Parsed(plain)
    except InvalidRequirement:
        raise InvalidArgument(
            argument, f"{plain!r} is not a valid requirement (PEP 508)", remediation=_WANTED
        ) from None
    arbitrary = any(one.operator == "===" for one in parsed.specifier)
    is_file = parsed.name.lower().endswith(_ARCHIVES)
    if parsed.url or parsed.marker or arbitrary or is_file or not _NAME.fullmatch(parsed.name):
        raise _not_plain(plain, argument, is_file=is_file)
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    return Requirement(normalize(parsed.name), f"{parsed.name}{extras}{parsed.specifier}", hashes=hashes)


def hashes_of(wanted: Iterable[Requirement]) -> dict[str, frozenset[str]]:
    """The hashes of each name's allowed files, without names that have none."""
    found: dict[str, frozenset[str]] = {}
    for one in wanted:
        if one.hashes:
            found[one.name] = found.get(one.name, frozenset()) | one.hashes
    return found


def _with_hashes(text: object, argument: str) -> tuple[object, frozenset[str]]:
    """The text before the hashes, and the hashes. Raises ``InvalidArgument``."""
    if not isinstance(text, str):
        return text, frozenset()
    plain, *given = text.split(_BEFORE_HASH)
    hashes = frozenset(one.rstrip(" ").lower() for one in given)
    if not all(map(_HASH.fullmatch, hashes)):
        return text, frozenset()
    if len(hashes) > _MOST_HASHES:
        raise InvalidArgument(argument, f"{plain[:80]!r} has {len(hashes)} hashes; the most is {_MOST_HASHES}")
    return plain.rstrip(" "), hashes


def _not_plain(text: object, argument: str, *, is_file: bool = False) -> InvalidArgument:
    given = str(text)
    why = "is not a plain requirement"
    if is_file:
        why = "is a file name, and packages come only from the index"
    elif ";" in given:
        why = "has a marker (what follows the ;), and is not a plain requirement"
    elif "@" in given or "/" in given or given.startswith("."):
        why = "is an address or a path, and packages come only from the index"
    elif given.startswith("-") or " --" in given:
        why = "has an option, and is not a plain requirement"
    return InvalidArgument(argument, f"{given[:80]!r} {why}", remediation=_WANTED)


def node_name(text: str) -> str | None:
    """``text`` if it is a valid npm name that is not reserved; otherwise None."""
    return text if _NODE_NAME.fullmatch(text) and text not in _NO_PACKAGES else None


def node_requirements(asked: Sequence[str] | str, argument: str = "packages") -> tuple[Requirement, ...]:
    """Check a list for npm: names with versions, ranges or tags, but no addresses, files, aliases or options. Raises
    ``InvalidArgument`` for ``argument``."""
    return _check_each(asked, argument, node_requirement, _NODE_WANTED)


def node_requirement(text: object, argument: str = "packages") -> Requirement:
    """Check one requirement of npm. Raises ``InvalidArgument``."""
    if isinstance(text, str) and len(text) <= _MOST_CHARACTERS:
        name, at, versions = text[1:].partition("@")
        name = text[:1] + name
        is_plain = bool(_RANGE.fullmatch(versions)) and not versions.endswith(_FILES) if at else True
        if node_name(name) and is_plain:
            return Requirement(name, text, versions or "*")
    raise InvalidArgument(argument, f"{str(text)[:80]!r} is not a plain package name", remediation=_NODE_WANTED)
