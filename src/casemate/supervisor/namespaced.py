"""Cells out of namespaces and mounts: the maker of the native wall."""

from __future__ import annotations

from casemate.supervisor import (
    cells,
    folders,
    init,
    kernel,
    listeners,
    native_init,
    pool,
    roots,
    scratch,
    seccomp,
    zygotes,
)
from casemate.supervisor.namespaces import Identities, Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class NamespaceMaker:
    """See `maker.Maker`."""

    def __init__(self, mode: str, cell_ids: range, *, bounded: bool = False) -> None:
        """``bounded``: our user namespace limits inotify for all cells together."""
        self.identities = Identities(cell_ids, mapped=mode != "user")
        self.native = native_init.load()
        self._prepared = init.preparation(has_inotify=bounded or mode == "root")
        self._is_owner = mode == "root"

    def seccomp_program(self, *, memory_is_counted: bool) -> bytes:
        return seccomp.program(kernel.machine, memory_is_counted=memory_is_counted)

    def build_root(self, key: str, entries: list[dict[str, Any]]) -> str:
        return roots.build(key, entries)

    def prefork(self, pending: pool.PendingCell, program: bytes) -> pool.ReadyCell:
        return pool.prefork(pending, program, self._prepared, self.native, is_owner=self._is_owner)

    def adopt_process(self, pid: int, pending: pool.PendingCell) -> pool.ReadyCell:
        return pool.adopt_process(pid, pending)

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
        cell.keep_namespaces()
        return listeners.open_listeners(cell.network, sockets)

    def show_folder(self, cell: cells.CellProcess, source: str, target: str) -> None:
        if cell.shown.get(target) != source:  # what comes into it later is seen as it is
            cell.keep_namespaces()
            folders.show_folder(cell.mounts, source, target)
            cell.shown[target] = source


def _with_root(made: scratch.Scratch, root: str) -> scratch.Scratch:
    try:
        made.mounts.insert(0, (kernel.open_tree(root), ""))
    except BaseException:
        made.close()
        raise
    return made
