"""How Python packages are installed: the cell's program, and whether what it left is what was served."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.languages.python.runtime import PythonRuntime
from casemate.model.overview import InstalledPackage, InstallTerms
from casemate.model.plan import BESIDE_PROGRAM, LAYERED, Bind, Entry
from casemate.packages.gateway import Served
from casemate.packages.names import Requirement, normalize
from casemate.packages.package_sets import PackageSet, projects

if TYPE_CHECKING:
    from casemate.languages.runtime import Environment

_UV = "/packages/uv"  # where the host's is, in the cell


@dataclass(frozen=True, slots=True)
class PythonInstaller:
    """uv, or the environment's pip; ``uv``: the host's, None for pip, its name alone for what cells have. ``host``:
    where cells find the gateway."""

    package_set: PackageSet
    uv: Path | None
    host: str
    language: str = "python"
    program: str = (
        f"__file__ = __file__.rpartition('/')[0] + '/{BESIDE_PROGRAM}/install_python.py'\n"
        "exec(compile(open(__file__).read(), __file__, 'exec'))\n"
    )

    def order(
        self, requirements: Sequence[Requirement], terms: InstallTerms, environment: Environment
    ) -> tuple[dict[str, Any], tuple[str, ...], tuple[Entry, ...]]:
        """What the program is told, its arguments, and what else its cell has."""
        runtime = PythonRuntime()
        uv, shown = _uv_in_the_cell(self.uv, runtime.launch(environment, runtime.default_name, ()).entries)
        there = () if self.package_set.current is None else (Bind(str(self.package_set.folder), LAYERED),)
        told = {
            "requirements": [one.text for one in requirements], "sources": terms.sources, "upgrade": terms.upgrade,
            "index": f"http://{self.host}/simple/", "host": self.host,
        }  # fmt: skip
        return told, (uv, *((f"{LAYERED}/current/site",) if there else ())), (*shown, *there)

    def match_files(self, new: Path, served: dict[str, Served]) -> tuple[tuple[InstalledPackage, ...], list[str]]:
        """The projects that the cell left, each with the file that was served for it; and those without one."""
        files = {key: one for one in served.values() if (key := _project_in(one.filename)) is not None}
        found, strangers = [], []
        for name, version in projects(new):
            file = files.get((name, _version(version)))
            if file is None:
                strangers.append(f"{name} {version}")
            else:
                found.append(package_of(name, version, file))
        return tuple(found), strangers

    def publish(self, new: Path, requirements: Sequence[Requirement]) -> None:  # noqa: ARG002
        """Keep it. Raises ``OSError``."""
        self.package_set.publish(new)


def package_of(name: str, version: str, file: Served) -> InstalledPackage:
    """It, with what is known of the file that it came in."""
    return replace(
        InstalledPackage(name, version, file.filename),
        source=file.url.partition("?")[0],
        sha256=file.sha256,
        size=file.size,
    )


def _uv_in_the_cell(uv: Path | None, entries: Iterable[Entry]) -> tuple[str, tuple[Bind, ...]]:
    """Where it is in the cell, and what it takes for that: a cell like the others may be ready, another is not."""
    if uv is None or not uv.is_absolute():
        return str(uv or ""), ()
    places = [entry.target for entry in entries if isinstance(entry, Bind) and entry.source == entry.target]
    if any(uv.is_relative_to(place) for place in places) and not uv.is_symlink():
        return str(uv), ()
    return _UV, (Bind(os.path.realpath(uv), _UV),)


def _project_in(filename: str) -> tuple[str, str] | None:
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

    try:
        if filename.endswith(".whl"):
            name, version, *_ = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None
    return normalize(name), str(version)


def _version(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text))
    except InvalidVersion:
        return text
