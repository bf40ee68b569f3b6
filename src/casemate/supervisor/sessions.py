"""What only cells of sessions need of the supervisor: pipes and clocks for steps, and files that outlive a cell."""

from __future__ import annotations

from functools import partial

from casemate.supervisor import cells, kernel, scratch
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from casemate.supervisor.maker import Maker


class SessionRequests:
    """``send`` sends the host a message, with descriptors; ``run_job`` is that of `jobs.Jobs`."""

    def __init__(self, send: Callable[..., None], maker: Maker, run_job: Callable[..., None]) -> None:
        self._send, self._run_job = send, run_job
        self._maker = maker
        self._files: dict[str, scratch.Scratch] = {}  # files, by the id of their last cell

    def identity(self, request: dict[str, Any]) -> Identity | None:
        """Who the next cell must be to have the files of an earlier one as its own; None where it has none."""
        earlier = self._files.get(request["continues"])
        return earlier.identity if earlier else None

    def prepare_scratch(self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: Any) -> Any:
        """What a new cell can write: empty, or what an earlier cell of the same session has left.

        Raises :class:`scratch.ScratchError`.
        """
        earlier = self._files.pop(request["continues"], None)
        if earlier:
            return self._maker.prepare_again(request, earlier, root)
        return self._maker.prepare_scratch(request, fds, identity, root)

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
                # The host looks there before it has anything paused.
                lays_out = cell.scratch.lays_out and cell.pause_for_files()
                if not lays_out:
                    cell.scratch.put_off_layout()
                end = partial(self._end_step, cell, message["step"])
                self._run_job(cell.id, partial(cell.count_files, lays_out=lays_out), end)
            case "interrupt":
                cell.interrupt(message["grace"])
            case "pause files":
                answer = {"op": "files paused", "id": cell.id, "complete": False}
                is_paused = cell.pause_for_files()
                lay_out = (lambda: answer.update(complete=cell.lay_out())) if is_paused else bool
                self._run_job(cell.id, lay_out, partial(self._send, answer))
            case "resume files":
                self._send({"op": "files resumed", "id": cell.id, "complete": cell.resume_after_files()})
            case "show":
                show = partial(self._maker.show_folder, cell, message["source"], message["target"])
                tell = partial(self._tell_shown, cell, message["number"])
                self._run_job(cell.id, show, tell, tell)

    def _end_step(self, cell: cells.CellProcess, step: int) -> None:
        if cell.scratch.lays_out:
            cell.resume_after_files()
        cell.judge_files()
        cell.scratch.end_pipes(step)
        usage = cell.usage()
        if cell.reason is None:  # else it ends, and the host hears of that
            self._send({"op": "step over", "id": cell.id, "step": step, "usage": usage})
            self._open_pipes(cell, step + 2)  # the host does not wait now, and the next step has its own

    def _tell_shown(self, cell: cells.CellProcess, number: int, error: Exception | None = None) -> None:
        code = (getattr(error, "errno", None) or 22) if error else 0
        self._send({"op": "shown", "id": cell.id, "number": number, "errno": code})

    def _open_pipes(self, cell: cells.CellProcess, step: int) -> None:
        try:
            fds = cell.scratch.open_pipes(step)
        except OSError:
            cell.kill("pipes")
            return
        self._send({"op": "pipes", "id": cell.id, "step": step}, fds)
        kernel.close_all(fds)
