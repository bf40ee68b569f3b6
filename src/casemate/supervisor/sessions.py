"""What only cells of sessions need of the supervisor: pipes and clocks for steps, and files that outlive a cell."""

from __future__ import annotations

from casemate.supervisor import broker, cells, folders
from casemate.supervisor.identity import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Sessions:
    """``say`` sends the host a message, with descriptors."""

    def __init__(self, identity: Identity, say: Callable[..., None]) -> None:
        self._identity = identity
        self._say = say
        self._kept: dict[str, broker.Scratch] = {}  # files, by the id of their last cell

    def scratch(self, request: dict[str, Any], fds: dict[str, int]) -> broker.Scratch:
        """What a new cell can write: empty, or what an earlier cell of the same session has left.

        Raises :class:`broker.BrokerError`.
        """
        kept = self._kept.pop(request["continues"], None)
        if kept is None:
            return broker.prepare(request, fds, self._identity)
        return broker.prepare_again(request, kept, self._identity)

    def opened(self, known: cells.Cell) -> None:
        """A session begins in this cell: give the host a way to its files, as the cell sees them and as they lie."""
        self._say({"op": "opened", "id": known.id}, [known.scratch.workspace_fd, known.scratch.tree_fd])

    def keep(self, known: cells.Cell) -> None:
        """The cell has ended; its files wait for the next, or until they are not wanted any more."""
        known.scratch.end_all_pipes()
        self._kept[known.id] = known.scratch
        known.keeps_files = True

    def forget(self, cell_id: str) -> None:
        """These files are not wanted any more. Harmless when repeated."""
        kept = self._kept.pop(cell_id, None)
        if kept:
            kept.close()

    def forget_all(self) -> None:
        """No files are wanted any more."""
        for cell_id in list(self._kept):
            self.forget(cell_id)

    def attend(self, known: cells.Cell, message: dict[str, Any]) -> None:
        """Do what the host wants of a session's cell."""
        match message["op"]:
            case "pipes":
                self._open_pipes(known, message["step"])
            case "step":
                known.begin_step(message["seconds"], message["grace"], message["repeat"])
                self._open_pipes(known, message["step"] + 1)  # the next step's, while this one runs
            case "step over":
                known.end_step()
                known.scratch.end_pipes(message["step"])
                usage = known.usage()
                if known.reason is None:  # else it ends, and the host hears of that
                    self._say({"op": "step over", "id": known.id, "step": message["step"], **usage})
            case "interrupt":
                known.interrupt(message["grace"])
            case "freeze":
                self._say({"op": "frozen", "id": known.id, "still": known.freeze()})
            case "thaw":
                self._say({"op": "thawed", "id": known.id, "still": known.thaw()})
            case "show":
                self._say({"op": "shown", "id": known.id, "number": message["number"], "errno": _show(known, message)})

    def _open_pipes(self, known: cells.Cell, step: int) -> None:
        try:
            fds = known.scratch.open_pipes(step)
        except OSError as error:
            known.problem = f"a step's pipes could not be made: {error.strerror}"
            known.kill("pipes")
            return
        self._say({"op": "pipes", "id": known.id, "step": step}, fds)
        cells.close_all(fds)


def _show(known: cells.Cell, message: dict[str, Any]) -> int:
    """Show a folder of the host in the cell: 0, or why it cannot be, as an errno."""
    try:
        known.keep_namespaces()
        folders.show(known.mounts, message["source"], message["target"])
    except OSError as error:
        return error.errno or 22
    return 0
