"""Host requests about a running cell: signals, pauses, sockets, and a session's steps and files."""

from __future__ import annotations

import _socket
from functools import partial

from casemate.supervisor import cells, kernel, scratch
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from casemate.supervisor.maker import Maker


_EINVAL = 22
_BACKLOG = 128  # connections that may wait for the host to accept
_KINDS = {"tcp": _socket.SOCK_STREAM, "client": _socket.SOCK_STREAM, "udp": _socket.SOCK_DGRAM}


class CellRequests:
    """``send`` sends the host a message with descriptors. ``run_job`` is `jobs.Jobs.run`."""

    def __init__(self, send: Callable[..., None], maker: Maker, run_job: Callable[..., None]) -> None:
        self._send, self._run_job = send, run_job
        self._maker = maker
        self._files: dict[str, scratch.Scratch] = {}  # of sessions without a cell, by the id of their last cell

    def identity(self, request: dict[str, Any]) -> Identity | None:
        """The identity of the cell that this one continues, so that it owns the same files; None if there is none."""
        earlier = self._files.get(request["continues"])
        return earlier.identity if earlier else None

    def prepare_scratch(self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: Any) -> Any:
        """The scratch of a new cell, or of the cell that it continues. Raises :class:`scratch.ScratchError`."""
        earlier = self._files.pop(request["continues"], None)
        if earlier:
            return self._maker.prepare_again(request, earlier, root)
        return self._maker.prepare_scratch(request, fds, identity, root)

    def begin_session(self, cell: cells.CellProcess) -> None:
        """Send the host the session's files, as the cell sees them and as stored, and the pipes of two steps."""
        self._send({"op": "session files", "id": cell.id}, [cell.scratch.workspace_fd, cell.scratch.tree_fd])
        for step in (1, 2):  # the end of each step opens the pipes of step + 2
            self._open_pipes(cell, step)

    def keep_files(self, cell: cells.CellProcess) -> None:
        """Keep the files of an ended cell for the session's next cell, or until `forget`."""
        cell.scratch.end_all_pipes()
        self._files[cell.id] = cell.scratch
        cell.keeps_files = True

    def forget(self, cell_id: str) -> None:
        earlier = self._files.pop(cell_id, None)
        if earlier:
            earlier.close()

    def handle(self, cell: cells.CellProcess, message: dict[str, Any]) -> None:
        """Carry out one request for a cell."""
        match message["op"]:
            case "kill":
                cell.kill(message["reason"])
            case "signal":
                cell.forward_signal(message["number"])
            case "pause":
                cell.pause()
            case "resume":
                cell.resume()
            case "listen":
                self.listen(cell, message["listeners"], message["number"])
            case _:
                self._serve_session(cell, message)

    def _serve_session(self, cell: cells.CellProcess, message: dict[str, Any]) -> None:
        match message["op"]:
            case "step":
                cell.begin_step(message["seconds"], message["grace"], message["repeat"])
            case "step over":
                cell.end_step()
                # The host reads the files before it pauses anything, so lay them out now.
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

    def listen(self, cell: cells.CellProcess, sockets: list[list[object]], number: int = 0) -> None:
        """Make sockets and send them to the host. ``number`` is that of the host's request, which is answered with an
        errno; for 0, the sockets that a cell starts with, errors raise ``OSError``."""
        fds: list[int] = []
        answer = {"op": "listening", "id": cell.id, "number": number}
        try:
            fds = self._maker.open_listeners(cell, sockets)
            self._send({**answer, "errno": 0, "count": len(fds)}, fds)
        except OSError as error:
            if not number:
                raise
            self._send({**answer, "errno": error.errno or _EINVAL, "count": 0})
        finally:
            kernel.close_all(fds)

    def _end_step(self, cell: cells.CellProcess, step: int) -> None:
        if cell.scratch.lays_out:
            cell.resume_after_files()
        cell.judge_files()
        cell.scratch.end_pipes(step)
        usage = cell.usage()
        if cell.reason is None:  # else the cell's end is reported
            self._send({"op": "step over", "id": cell.id, "step": step, "usage": usage})
            self._open_pipes(cell, step + 2)  # the host is not waiting, and the next step has its pipes

    def _tell_shown(self, cell: cells.CellProcess, number: int, error: Exception | None = None) -> None:
        code = (getattr(error, "errno", None) or _EINVAL) if error else 0
        self._send({"op": "shown", "id": cell.id, "number": number, "errno": code})

    def _open_pipes(self, cell: cells.CellProcess, step: int) -> None:
        try:
            fds = cell.scratch.open_pipes(step)
        except OSError:
            cell.kill("pipes")
            return
        self._send({"op": "pipes", "id": cell.id, "step": step}, fds)
        kernel.close_all(fds)


def open_sockets(sockets: Sequence[Sequence[object]]) -> list[int]:
    """Open each of ``sockets`` (kind, address, port) in this process's network namespace. ``"tcp"`` and ``"udp"``
    listen at an IPv4 address. The host connects a ``"client"``, which stays in its namespace. Raises ``OSError``."""
    return [_open_socket(str(kind), address, port).detach() for kind, address, port in sockets]


def _open_socket(kind: str, address: object, port: object) -> _socket.socket:
    family = _socket.AF_INET6 if ":" in str(address) else _socket.AF_INET
    sock = _socket.socket(family, _KINDS[kind] | _socket.SOCK_CLOEXEC, 0)
    if kind == "client":
        return sock
    if kind == "tcp":  # ignore an old connection's TIME_WAIT; a listening port still refuses
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    if kind == "tcp":
        sock.listen(_BACKLOG)
    return sock
