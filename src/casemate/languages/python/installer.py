"""Installs Python packages in a cell, and checks the result against the served files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.languages.python.runtime import PythonRuntime
from casemate.model.overview import InstalledPackage, InstallTerms
from casemate.model.plan import BESIDE_PROGRAM, LAYERED, Bind, Entry
from casemate.packages.gateway import Served
from casemate.packages.names import Requirement, project_in
from casemate.packages.package_sets import PackageSet, projects

if TYPE_CHECKING:
    from casemate.languages.runtime import Environment

_UV = "/packages/uv"  # the host's uv in the cell


@dataclass(frozen=True, slots=True)
class PythonInstaller:
    """Installs with uv or the environment's pip."""

    package_set: PackageSet
    uv: Path | None  # the host's uv, or the name of one that cells have; None for pip
    host: str  # where cells find the gateway
    language: str = "python"
    program: str = (
        f"__file__ = __file__.rpartition('/')[0] + '/{BESIDE_PROGRAM}/install_python.py'\n"
        "exec(compile(open(__file__).read(), __file__, 'exec'))\n"
    )

    def order(
        self, requirements: Sequence[Requirement], terms: InstallTerms, environment: Environment
    ) -> tuple[dict[str, Any], tuple[str, ...], tuple[Entry, ...]]:
        """The program's order, its arguments, and what else its cell sees."""
        runtime = PythonRuntime()
        uv, shown = _uv_in_the_cell(self.uv, runtime.launch(environment, runtime.default_name, ()).entries)
        there = () if self.package_set.current is None else (Bind(str(self.package_set.folder), LAYERED),)
        told = {
            "requirements": [one.text for one in requirements], "sources": terms.sources, "upgrade": terms.upgrade,
            "index": f"http://{self.host}/simple/", "host": self.host,
        }  # fmt: skip
        return told, (uv, *((f"{LAYERED}/current/site",) if there else ())), (*shown, *there)

    def match_files(self, new: Path, served: dict[str, Served]) -> tuple[tuple[InstalledPackage, ...], list[str]]:
        """The installed projects with their served files, and the names of those without one."""
        from packaging.utils import canonicalize_version

        files = {key: one for one in served.values() if (key := project_in(one.filename)) is not None}
        found, strangers = [], []
        for name, version in projects(new):
            file = files.get((name, canonicalize_version(version, strip_trailing_zero=False)))
            if file is None:
                strangers.append(f"{name} {version}")
            else:
                found.append(package_of(name, version, file))
        return tuple(found), strangers

    def publish(self, new: Path, requirements: Sequence[Requirement]) -> None:  # noqa: ARG002
        """Keep the result. Raises ``OSError``."""
        self.package_set.publish(new)


def package_of(name: str, version: str, file: Served) -> InstalledPackage:
    """The package, with the facts of the file that it came in."""
    return InstalledPackage(name, version, file.filename, file.url.partition("?")[0], file.sha256, file.size)


def find_uv(env: Mapping[str, str]) -> Path | None:
    """The host's uv: beside casemate's own interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=env.get("PATH", os.defpath))
    return Path(found) if found else None


def _uv_in_the_cell(uv: Path | None, entries: Iterable[Entry]) -> tuple[str, tuple[Bind, ...]]:
    """The path of uv in the cell, and the binds that it needs. Without binds, a ready cell may fit."""
    if uv is None or not uv.is_absolute():
        return str(uv or ""), ()
    places = [entry.target for entry in entries if isinstance(entry, Bind) and entry.source == entry.target]
    if any(uv.is_relative_to(place) for place in places) and not uv.is_symlink():
        return str(uv), ()
    return _UV, (Bind(os.path.realpath(uv), _UV),)
