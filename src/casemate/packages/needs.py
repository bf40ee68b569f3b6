"""Which packages need which, by the metadata of the served files: a cell could have changed what it unpacked."""

from __future__ import annotations

import gzip
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from casemate.files.heads import Heads
from casemate.packages.names import normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from casemate.model.overview import InstalledPackage
    from casemate.packages.store import PackageStore

_MOST_METADATA = 4 << 20  # bytes of one package's metadata
_MOST_BEFORE = 64 << 20  # bytes of an npm archive up to the end of its package.json
_MOST_MEMBERS = 10_000  # before package.json
_MEMBERS = ("dependencies", "optionalDependencies", "peerDependencies")


def label_of(package: InstalledPackage, language: str) -> str:
    """The package and its exact version, as approval requests name it."""
    return f"{package.name}{'==' if language == 'python' else '@'}{package.version}"


def needed_by(
    found: Iterable[InstalledPackage], requested: Iterable[str], language: str, store: PackageStore
) -> dict[str, list[str]]:
    """Map each of ``found`` to the others of ``found`` that need it. Blocks."""
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
    """Requirements of an extra count if the extra was requested. Other markers were for the installer to judge."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import Requirement

    said = {one: _requires_dist(file) for one, file in files.items() if file is not None}
    extras: dict[str, set[str]] = {}
    for wanted in [*map(Requirement, requested), *(one for each in said.values() for one in each)]:
        extras.setdefault(normalize(wanted.name), set()).update(wanted.extras)

    def is_needed(one: Requirement, by: str) -> bool:
        if one.marker is None or "extra" not in str(one.marker):
            return True
        with suppress(UndefinedComparison, UndefinedEnvironmentName, ValueError):
            return any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras.get(by, ())))
        return False

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
    bad = (OSError, ValueError, EOFError, RecursionError, OverflowError, tarfile.TarError, zlib.error)
    with file, suppress(*bad), gzip.GzipFile(fileobj=file) as unpacked:
        heads = Heads(cast("BinaryIO", unpacked))
        with tarfile.TarFile(fileobj=cast("BinaryIO", heads), mode="r", tarinfo=heads.member) as archive:
            return _find_package_json(archive, heads)
    return {}


def _find_package_json(archive: tarfile.TarFile, heads: Heads) -> dict[str, Any]:
    """The first one in a top-level folder."""
    for _ in range(_MOST_MEMBERS):
        member = archive.next()
        if member is None or member.size < 0 or member.offset_data + member.size > _MOST_BEFORE:
            break
        heads.complete(member)
        with heads.content():
            if member.isfile() and member.name.count("/") == 1 and member.name.endswith("/package.json"):
                content = archive.extractfile(member)
                said = json.loads(content.read(_MOST_METADATA)) if content else {}
                return said if isinstance(said, dict) else {}
    return {}
