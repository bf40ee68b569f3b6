"""Who a cell is on the host."""

from __future__ import annotations

import os
import stat

from casemate.supervisor import enter


class Identity:
    """Who a cell is on the host. ``mapped``: the supervisor is real root and must give files away."""

    def __init__(self, uid: int, gid: int, *, mapped: bool) -> None:
        self.uid = uid
        self.gid = gid
        self.mapped = mapped
        self._namespaces: dict[tuple[int, int], int] = {}

    def give(self, path: str) -> None:
        """Make the cell the owner of ``path``."""
        if self.mapped:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_fd(self, fd: int) -> None:
        """Let the cell reopen what it holds (``>/dev/stderr``): only pipes and files without a name are given away."""
        status = os.fstat(fd)
        if self.mapped and (stat.S_ISFIFO(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 0)):
            os.fchown(fd, self.uid, self.gid)

    def as_cell(self) -> _AsCell:
        """A block in which our real ids are a cell's: root without CAP_SYS_RESOURCE may lower limits only of processes
        that have the same (prlimit(2))."""
        return _AsCell(self)

    def namespace_for(self, owner: tuple[int, int]) -> int:
        """A user namespace that shows the files of ``owner`` as the cell's own (mount_setattr(2), idmapped mounts)."""
        if owner not in self._namespaces:
            maps = (f"{owner[0]} {self.uid} 1", f"{owner[1]} {self.gid} 1")
            self._namespaces[owner] = enter.userns_with_map(*maps)
        return self._namespaces[owner]


class _AsCell:
    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def __enter__(self) -> None:
        if self.identity.mapped:
            os.setresgid(self.identity.gid, -1, -1)
            os.setresuid(self.identity.uid, -1, -1)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.identity.mapped:
            os.setresuid(0, -1, -1)
            os.setresgid(0, -1, -1)
