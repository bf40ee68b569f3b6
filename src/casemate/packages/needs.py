"""Which packages need which, as the files say that were served: what a cell has unpacked could say anything."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from casemate.packages.names import normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from casemate.model.overview import InstalledPackage
    from casemate.packages.store import PackageStore

_MOST_METADATA = 4 << 20  # bytes of what one package says of itself
_MOST_BEFORE = 64 << 20  # bytes of an archive of npm's before its package.json
_MEMBERS = ("dependencies", "optionalDependencies", "peerDependencies")


def label_of(package: InstalledPackage, language: str) -> str:
    """How questions name it: with exactly its version."""
    return f"{package.name}{'==' if language == 'python' else '@'}{package.version}"


def needed_by(
    found: Iterable[InstalledPackage], requested: Iterable[str], language: str, store: PackageStore
) -> dict[str, list[str]]:
    """For each of ``found`` that another of it needs: which. Blocks."""
    needs = _python_needs if language == "python" else _node_needs
    labels: dict[str, list[str]] = {}
    for one in found:
        labels.setdefault(one.name, []).append(label_of(one, language))
    above: dict[str, list[str]] = {}
    for one, names in needs({one: store.open(one.sha256) for one in found}, requested).items():
        for label in (label for name in sorted(names) for label in labels.get(name, ())):
            above.setdefault(label, []).append(label_of(one, language))
    return above


def _python_needs(
    files: dict[InstalledPackage, IO[bytes] | None], requested: Iterable[str]
) -> dict[InstalledPackage, set[str]]:
    """An extra's are needed where somebody asked for the extra; other markers were the installer's to judge."""
    from packaging.requirements import Requirement

    said = {one: _requires_dist(file) for one, file in files.items() if file is not None}
    extras: dict[str, set[str]] = {}
    for wanted in [*map(Requirement, requested), *(one for each in said.values() for one in each)]:
        extras.setdefault(normalize(wanted.name), set()).update(wanted.extras)

    def is_needed(one: Requirement, by: str) -> bool:
        if one.marker is None or "extra" not in str(one.marker):
            return True
        return any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras.get(by, ())))

    return {one: {normalize(each.name) for each in all_ if is_needed(each, one.name)} for one, all_ in said.items()}


def _requires_dist(file: IO[bytes]) -> list[Requirement]:
    from packaging.metadata import parse_email
    from packaging.requirements import InvalidRequirement, Requirement

    with file, suppress(OSError, ValueError, zipfile.BadZipFile, NotImplementedError, InvalidRequirement):
        archive = zipfile.ZipFile(file)
        (name,) = [one for one in archive.namelist() if one.count("/") == 1 and one.endswith(".dist-info/METADATA")]
        with archive.open(name) as member:
            said, _ = parse_email(member.read(_MOST_METADATA))
        return [Requirement(one) for one in said.get("requires_dist", ())]
    return []


def _node_needs(
    files: dict[InstalledPackage, IO[bytes] | None], _requested: Iterable[str]
) -> dict[InstalledPackage, set[str]]:
    found = {}
    for one, file in files.items():
        said = {} if file is None else _package_json(file)
        found[one] = {name for key in _MEMBERS if isinstance(said.get(key), dict) for name in said[key]}
    return found


def _package_json(file: IO[bytes]) -> dict[str, Any]:
    bad = (OSError, ValueError, EOFError, RecursionError, tarfile.TarError)
    with file, suppress(*bad), tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            if member.offset > _MOST_BEFORE:
                break
            if member.isfile() and member.name.count("/") == 1 and member.name.endswith("/package.json"):
                content = archive.extractfile(member)
                said = json.loads(content.read(_MOST_METADATA)) if content else {}
                return said if isinstance(said, dict) else {}
    return {}
