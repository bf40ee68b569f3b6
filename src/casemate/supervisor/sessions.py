"""What only cells of sessions need of the supervisor: pipes and clocks for steps, and files that outlive a cell."""

from __future__ import annotations

from casemate.supervisor import cells, kernel, scratch
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from casemate.supervisor.maker import Maker


class SessionRequests:
    """``send`` sends the host a message, with descriptors."""

    def __init__(self, send: Callable[..., None], maker: Maker) -> None:
        self._send = send
        self._maker = maker
        self._files: dict[str, scratch.Scratch] = {}  # files, by the id of their last cell

    def identity(self, request: dict[str, Any]) -> Identity | None:
        """Who the next cell must be to have the files of an earlier one as its own; None where it has none."""
        earlier = self._files.get(request["continues"])
        return earlier.identity if earlier else None

    def prepare_scratch(
        self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: Any
    ) -> scratch.Scratch:
        """What a new cell can write: empty, or what an earlier cell of the same session has left.

        Raises :class:`scratch.ScratchError`.
        """
        earlier = self._files.pop(request["continues"], None)
        if earlier is None:
            made: scratch.Scratch = self._maker.prepare_scratch(request, fds, identity, root)
        else:
            made = self._maker.prepare_again(request, earlier, root)
        return made

    def send_files(self, cell: cells.CellProcess) -> None:
        """A session begins in this cell: give the host a way to its files, as the cell sees them and as they lie."""
        self._send({"op": "session files", "id": cell.id}, [cell.scratch.workspace_fd, cell.scratch.tree_fd])

    def keep_files(self, cell: cells.CellProcess) -> None:
        """The cell has ended; its files wait for the next, or until they are not wanted any more."""
        cell.scratch.end_all_pipes()
        self._files[cell.id] = cell.scratch
        cell.keeps_files = True

    def forget(self, cell_id: str) -> None:
        """These files are not wanted any more. Harmless when repeated."""
        earlier = self._files.pop(cell_id, None)
        if earlier:
            earlier.close()

    def forget_all(self) -> None:
        """No files are wanted any more."""
        for cell_id in list(self._files):
            self.forget(cell_id)

    def handle(self, cell: cells.CellProcess, message: dict[str, Any]) -> None:
        """Do what the host wants of a session's cell."""
        match message["op"]:
            case "pipes":
                self._open_pipes(cell, message["step"])
            case "step":
                cell.begin_step(message["seconds"], message["grace"], message["repeat"])
            case "step over":
                cell.end_step()
                if cell.scratch.lays_out:  # the host looks there before it has anything paused
                    _pause_files(cell)
                    cell.resume_after_files()
                cell.scratch.end_pipes(message["step"])
                usage = cell.usage()
                if cell.reason is None:  # else it ends, and the host hears of that
                    self._send({"op": "step over", "id": cell.id, "step": message["step"], "usage": usage})
                    self._open_pipes(cell, message["step"] + 2)  # nobody waits now, and the next step has its own
            case "interrupt":
                cell.interrupt(message["grace"])
            case "pause files":
                self._send({"op": "files paused", "id": cell.id, "complete": _pause_files(cell)})
            case "resume files":
                self._send({"op": "files resumed", "id": cell.id, "complete": cell.resume_after_files()})
            case "show":
                self._send(
                    {"op": "shown", "id": cell.id, "number": message["number"], "errno": self._show(cell, message)}
                )

    def _open_pipes(self, cell: cells.CellProcess, step: int) -> None:
        try:
            fds = cell.scratch.open_pipes(step)
        except OSError as error:
            cell.problem = f"a step's pipes could not be made: {error.strerror}"
            cell.kill("pipes")
            return
        self._send({"op": "pipes", "id": cell.id, "step": step}, fds)
        kernel.close_all(fds)

    def _show(self, cell: cells.CellProcess, message: dict[str, Any]) -> int:
        """Show a folder of the host in the cell: 0, or why it cannot be, as an errno."""
        try:
            self._maker.show_folder(cell, message["source"], message["target"])
        except OSError as error:
            return error.errno or 22
        return 0


def _pause_files(cell: cells.CellProcess) -> bool:
    """Stop everything in the cell, and have its files ready for the host; whether all of it is stopped."""
    is_complete = cell.pause_for_files()
    if is_complete:
        cell.scratch.lay_out()  # not while anything could lead it elsewhere
    return is_complete
