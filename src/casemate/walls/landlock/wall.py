"""The landlock wall, where it differs from the native wall's host side."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from casemate.errors import WallUnavailable
from casemate.files.temporary import TemporaryFolder, sweep
from casemate.walls.landlock import report
from casemate.walls.native.spawn import Supervisor
from casemate.walls.native.wall import NativeWall

if TYPE_CHECKING:
    from casemate.model.isolation import IsolationReport

_ENTRY = "plain.main"
_MACHINES = ("/proc", *(f"/etc/{name}" for name in ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf",
             "host.conf", "shells")))  # fmt: skip  # cells have no private root and see the machine's own
_MODE = 0o711  # cells run as other users; each cell's folder is 0700


class LandlockWall(NativeWall):
    """Isolates cells with Landlock, seccomp notifications and folders on disk. See ``docs/explanation/walls.md``."""

    name = "landlock"
    lays_out = True
    _make_report = staticmethod(report.make)
    _folder: TemporaryFolder | None = None

    async def prove(self) -> IsolationReport:
        """Like `NativeWall.prove`; also refuses an interpreter that the cells' users cannot reach."""
        if os.geteuid() == 0 and (closed := _closed_folder(sys.executable)):
            raise WallUnavailable(
                f"As root, each cell runs as its own user, who may not enter {closed}, on the way to the interpreter.",
                reason="unreachable_interpreter",
                remediation=f"Run casemate as an ordinary user, or with another interpreter, or: chmod o+x {closed}",
            )
        return await super().prove()

    def shown_paths(self) -> tuple[str, ...]:
        return (*super().shown_paths(), *_MACHINES)

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
                remediation="Use Linux 6.12 or newer with Landlock enabled (lsm=landlock,...).",
            )
        return super()._explain(stage, number, detail)

    async def close(self) -> None:
        await super().close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()


def _closed_folder(path: str) -> str:
    """Return the first folder on the way to ``path`` that not every user may enter, or ""."""
    parts = os.path.realpath(path).split("/")
    folders = ["/".join(parts[:depth]) for depth in range(2, len(parts))]
    return next((folder for folder in folders if not os.stat(folder).st_mode & stat.S_IXOTH), "")
