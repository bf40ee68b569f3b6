"""What may be asked of an installer: names, extras and versions, and nothing that is an option, an address or a path.

Sources: PEP 508 (requirements), PEP 440 (versions), PEP 503 (names); npm's validate-npm-package-name and package-spec
pages (names, ranges, tags). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from casemate.errors import InvalidArgument

MOST_REQUIREMENTS = 200
_MOST_CHARACTERS = 300
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_PLAIN = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._\-\[\],<>=!~+* ]*"
)  # what of PEP 508 is left without addresses and markers
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
_NO_PACKAGES = ("node_modules", "favicon.ico", "mcptools")  # npm's own, and what casemate has there
_NODE_WANTED = "Give names with versions, such as 'left-pad', '@types/node@22.1.0' or 'ms@^2'."


@dataclass(frozen=True, slots=True)
class Requirement:
    """``name`` as PyPI normalises it, or npm's; ``text``: the whole requirement, in its canonical spelling; ``range``:
    of npm's, which versions; ``hashes``: the SHA-256 of the files that it may come in, none for any."""

    name: str
    text: str
    range: str = ""
    hashes: frozenset[str] = frozenset()


def normalize(name: str) -> str:
    """A name as indexes have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project(text: str) -> str | None:
    """``text`` if it is a normalised name of a project, as a path of an index has it; None otherwise."""
    return text if _NAME.fullmatch(text) and normalize(text) == text else None


def requirements(asked: Sequence[str] | str, argument: str = "packages") -> tuple[Requirement, ...]:
    """What is asked for, checked. Raises ``InvalidArgument`` naming ``argument`` for anything that is not a list of
    plain requirements."""
    if isinstance(asked, str) or not isinstance(asked, Sequence) or not asked:
        raise InvalidArgument(argument, f"{str(asked)[:80]!r} is not a list of requirements", remediation=_WANTED)
    if len(asked) > MOST_REQUIREMENTS:
        raise InvalidArgument(argument, f"{len(asked)} requirements; the most is {MOST_REQUIREMENTS}")
    return tuple(requirement(one, argument) for one in asked)


def requirement(text: object, argument: str = "packages") -> Requirement:
    """One requirement, with the hashes of files that it may come in where ``--hash=sha256:...`` follows it, as in the
    files that pip-compile writes. Raises ``InvalidArgument``.

    Markers are refused, too: which packages come is not to depend on what the reader does not see.
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
            argument, f"{plain!r} is not a requirement as PEP 508 has it", remediation=_WANTED
        ) from None
    arbitrary = any(one.operator == "===" for one in parsed.specifier)
    is_file = parsed.name.lower().endswith(_ARCHIVES)
    if parsed.url or parsed.marker or arbitrary or is_file or not _NAME.fullmatch(parsed.name):
        raise _not_plain(plain, argument, is_file=is_file)
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    return Requirement(normalize(parsed.name), f"{parsed.name}{extras}{parsed.specifier}", hashes=hashes)


def hashes_of(wanted: Iterable[Requirement]) -> dict[str, frozenset[str]]:
    """By name, the hashes of the files that each may come in; names without any are left out."""
    found: dict[str, frozenset[str]] = {}
    for one in wanted:
        if one.hashes:
            found[one.name] = found.get(one.name, frozenset()) | one.hashes
    return found


def _with_hashes(text: object, argument: str) -> tuple[object, frozenset[str]]:
    """What stands before the hashes, and these. Raises ``InvalidArgument``."""
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
    """Why not, as far as that can be told."""
    given = str(text)
    why = "is not a plain requirement"
    if is_file:
        why = "is the name of a file, and packages come from the index alone"
    elif ";" in given:
        why = "has a marker (what follows the ;), and is not a plain requirement"
    elif "@" in given or "/" in given or given.startswith("."):
        why = "is an address or a path, and packages come from the index alone"
    elif given.startswith("-") or " --" in given:
        why = "has an option, and is not a plain requirement"
    return InvalidArgument(argument, f"{given[:80]!r} {why}", remediation=_WANTED)


def node_name(text: str) -> str | None:
    """``text`` if it is a name of npm's, of a package that is not there already; None otherwise."""
    return text if _NODE_NAME.fullmatch(text) and text not in _NO_PACKAGES else None


def node_requirements(asked: Sequence[str] | str, argument: str = "packages") -> tuple[Requirement, ...]:
    """What is asked of npm, checked: names with versions, ranges or tags, and no addresses, files, aliases or options.
    Raises ``InvalidArgument`` naming ``argument``."""
    if isinstance(asked, str) or not isinstance(asked, Sequence) or not asked:
        raise InvalidArgument(argument, f"{str(asked)[:80]!r} is not a list of packages", remediation=_NODE_WANTED)
    if len(asked) > MOST_REQUIREMENTS:
        raise InvalidArgument(argument, f"{len(asked)} packages; the most is {MOST_REQUIREMENTS}")
    return tuple(node_requirement(one, argument) for one in asked)


def node_requirement(text: object, argument: str = "packages") -> Requirement:
    """One of them. Raises ``InvalidArgument``."""
    if isinstance(text, str) and len(text) <= _MOST_CHARACTERS:
        name, at, versions = text[1:].partition("@")
        name = text[:1] + name
        is_plain = bool(_RANGE.fullmatch(versions)) and not versions.endswith(_FILES) if at else True
        if node_name(name) and is_plain:
            return Requirement(name, text, versions or "*")
    raise InvalidArgument(argument, f"{str(text)[:80]!r} is not a plain name of a package", remediation=_NODE_WANTED)
