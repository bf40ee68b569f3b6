"""The landlock wall, as far as it is not the native one's host side."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from casemate.errors import WallUnavailable
from casemate.files.temporary import TemporaryFolder, sweep
from casemate.walls.landlock import report
from casemate.walls.native.spawn import Supervisor
from casemate.walls.native.wall import NativeWall

if TYPE_CHECKING:
    from casemate.model.isolation import IsolationReport, Proof

_ENTRY = "plain.main"
_MACHINES = ("/proc", *(f"/etc/{name}" for name in ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf",
             "host.conf", "shells")))  # fmt: skip  # there is no root of a cell's own, so that these are the machine's
_MODE = 0o711  # cells have other users than we; the folders of cells are 0700


class LandlockWall(NativeWall):
    """Cells out of Landlock, seccomp with notifications, and folders on the disk. See ``docs/explanation/walls.md``."""

    name = "landlock"
    lays_out = True

    _folder: TemporaryFolder | None = None

    async def prove(self) -> IsolationReport:
        """As of `NativeWall`, also where an interpreter cannot be reached by the users that cells have."""
        if os.geteuid() == 0 and (closed := _closed_folder(sys.executable)):
            raise WallUnavailable(
                f"As root each cell has a user of its own, who may not enter {closed}, where the interpreter is.",
                reason="unreachable_interpreter",
                remediation=f"Run casemate as an ordinary user, or by an interpreter elsewhere, or: chmod o+x {closed}",
            )
        return await super().prove()

    def shown_paths(self) -> tuple[str, ...]:
        return (*super().shown_paths(), *_MACHINES)

    def _make_report(self, facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
        return report.make(facts, proofs, proved_at)

    def _start_supervisor(self) -> Supervisor:
        if self._folder is None:
            sweep()
            self._folder = TemporaryFolder("cells")
            self._folder.path.chmod(_MODE)
        return Supervisor(_ENTRY, str(self._folder.path))

    def _explain(self, stage: str, number: int, detail: str) -> WallUnavailable:
        if stage == "landlock":
            return WallUnavailable(
                f"{detail}; the landlock wall needs version 6, which keeps a cell's signals inside.",
                reason="old_landlock",
                remediation="Linux 6.12 or newer has it, with Landlock among the security modules (lsm=landlock,...).",
            )
        return super()._explain(stage, number, detail)

    async def close(self) -> None:
        await super().close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()


def _closed_folder(path: str) -> str:
    """The first folder on the way to what ``path`` is that not everybody may enter; empty where there is none."""
    parts = os.path.realpath(path).split("/")
    folders = ["/".join(parts[:depth]) for depth in range(2, len(parts))]
    return next((folder for folder in folders if not os.stat(folder).st_mode & stat.S_IXOTH), "")
