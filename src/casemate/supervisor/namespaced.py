"""The maker of the native wall: cells made with namespaces and mounts."""

from __future__ import annotations

from functools import partial

from casemate.supervisor import (
    cells,
    folders,
    init,
    kernel,
    namespaces,
    native_init,
    pool,
    requests,
    roots,
    scratch,
    seccomp,
    zygotes,
)
from casemate.supervisor.namespaces import Identities, Identity

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class NamespaceMaker:
    def __init__(self, mode: str, cell_ids: range, *, bounded: bool = False) -> None:
        """``bounded``: the supervisor's user namespace limits inotify for all cells together."""
        self.identities = Identities(cell_ids, mapped=mode != "user")
        self.native = native_init.load()
        self._prepared = init.preparation(has_inotify=bounded or mode == "root")
        self._is_owner = mode == "root"

    def seccomp_program(self, *, memory_is_counted: bool) -> bytes:
        return seccomp.program(kernel.machine, memory_is_counted=memory_is_counted)

    def build_root(self, key: str, entries: list[dict[str, Any]]) -> str:
        return roots.build(key, entries)

    def prefork(self, pending: pool.PendingCell, program: bytes) -> pool.ReadyCell:
        do, flags = (kernel.bare_clone if self.native else kernel.clone), kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID
        try:
            # As root, each cell's user owns its user namespace.
            pid = kernel.clone_owned(pending.identity.uid, do, flags) if self._is_owner else do(flags)
        except OSError:
            pending.discard()
            raise
        if pid == 0:
            if self.native:
                self.native.run(pending.ends, program, self._prepared)
            channel, status, *cgroup_fds = pending.ends
            init.run(channel, status, cgroup_fds, program, self._prepared)
        return self.adopt_process(pid, pending)

    def adopt_process(self, pid: int, pending: pool.PendingCell) -> pool.ReadyCell:
        """Write its id maps and let it prepare itself. On failure, nothing of either is left."""
        cell = pool.ReadyCell(pid, pending)
        try:
            uid_map, gid_map = f"{init.UID} {cell.identity.uid} 1", f"{init.GID} {cell.identity.gid} 1"
            namespaces.write_maps(pid, uid_map, gid_map, deny_setgroups=True)
            cell.channel.send(init.MAPPED)
        except BaseException:
            cell.discard()
            raise
        return cell

    def start_zygote(self, root: str, request: dict[str, Any], fds: dict[int, int]) -> tuple[int, dict[str, Any]]:
        settings = {"prepared": self._prepared, "native": self.native is not None}
        return zygotes.start(root, request, self.identities.first, fds), settings

    def prepare_scratch(
        self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: str
    ) -> scratch.Scratch:
        return _with_root(scratch.prepare(request, fds, identity), root)

    def prepare_again(self, request: dict[str, Any], earlier: scratch.Scratch, root: str) -> scratch.Scratch:
        return _with_root(scratch.prepare_again(request, earlier), root)

    def attend(self, cell: cells.CellProcess, watch: Callable[..., None], unwatch: Callable[[int], None]) -> None:
        pass

    def is_survived(self, cell: cells.CellProcess) -> bool:  # noqa: ARG002
        return False

    def leave(self, cell: cells.CellProcess) -> None:
        pass

    def open_listeners(self, cell: cells.CellProcess, sockets: Sequence[Sequence[object]]) -> list[int]:
        cell.ready.wait_prepared()
        do = partial(requests.open_sockets, sockets)
        return namespaces.open_inside(cell.ready.network_namespace, kernel.CLONE_NEWNET, do, "listeners")

    def show_folder(self, cell: cells.CellProcess, source: str, target: str) -> None:
        if cell.shown.get(target) != source:  # later changes of a shown folder are visible anyway
            cell.ready.wait_prepared()
            folders.show_folder(cell.ready.mount_namespace, source, target)
            cell.shown[target] = source


def _with_root(made: scratch.Scratch, root: str) -> scratch.Scratch:
    try:
        made.mounts.insert(0, (kernel.open_tree(root), ""))
    except BaseException:
        made.close()
        raise
    return made
