"""Installs Node packages with npm, and checks the result against the served files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.languages.python.installer import package_of
from casemate.model.overview import InstalledPackage, InstallTerms
from casemate.model.plan import BESIDE_PROGRAM, Entry
from casemate.packages.gateway import Served
from casemate.packages.names import Requirement
from casemate.packages.package_sets import MODULES, NodePackageSet, modules

if TYPE_CHECKING:
    from casemate.languages.runtime import Environment


@dataclass(frozen=True, slots=True)
class NodeInstaller:
    """The npm installer."""

    package_set: NodePackageSet
    # Path of npm on the host and in the cell; None for the one beside the cell's own Node.
    npm: Path | None
    host: str  # where cells find the gateway
    language: str = "node"
    program: str = f"require('{BESIDE_PROGRAM}/install_node.cjs')\n"

    def order(
        self,
        requirements: Sequence[Requirement],
        terms: InstallTerms,
        environment: Environment,  # noqa: ARG002
    ) -> tuple[dict[str, Any], tuple[str, ...], tuple[Entry, ...]]:
        """The program's order, its arguments, and what else its cell sees. The order names all packages wanted so far,
        because npm always makes a whole tree."""
        told = {
            "wanted": self._add_wanted(requirements), "scripts": terms.sources, "registry": f"http://{self.host}/",
            "npm": str(self.npm or ""), "lock": "" if terms.upgrade else self.package_set.lock,
        }  # fmt: skip
        return told, (), ()

    def match_files(self, new: Path, served: dict[str, Served]) -> tuple[tuple[InstalledPackage, ...], list[str]]:
        """The new packages with their served files, and the names of those that no served file explains."""
        left = modules(new / MODULES)
        by_place = {one.place: one for one in left}
        before = (
            set()
            if self.package_set.current is None
            else {(one.name, one.version) for one in modules(self.package_set.current)}
        )
        found: dict[tuple[str, str], InstalledPackage] = {}
        strangers = []
        for one in left:
            file = served.get(f"{one.name}@{one.version}")
            if one.place == "mcptools":
                strangers.append("mcptools, a name that casemate itself uses")
            elif file is not None and (one.name, one.version) not in before:
                found[one.name, one.version] = package_of(one.name, one.version, file)
            elif file is None and not _is_bundled(one.place, by_place, served):
                strangers.append(f"{one.name or one.place} {one.version}".rstrip())
        return tuple(found[key] for key in sorted(found)), strangers

    def publish(self, new: Path, requirements: Sequence[Requirement]) -> None:
        """Keep the result. Raises ``OSError``."""
        self.package_set.publish(new)
        self.package_set.wanted = self._add_wanted(requirements)

    def _add_wanted(self, requirements: Sequence[Requirement]) -> dict[str, str]:
        return {**self.package_set.wanted, **{one.name: one.range for one in requirements}}


def _is_bundled(place: str, by_place: dict[str, Any], served: dict[str, Served]) -> bool:
    """Whether it came in the file of a package around it that bundles others, according to the registry."""
    while f"/{MODULES}/" in place:
        place = place.rpartition(f"/{MODULES}/")[0]
        around = by_place.get(place)
        file = around and served.get(f"{around.name}@{around.version}")
        if file:
            return bool(file.bundles)
    return False
