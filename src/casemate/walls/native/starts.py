"""How cells begin behind a link: with their program, or made to wait for it and begun later. From any thread."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from casemate.supervisor import wire
from casemate.walls.native.descriptors import (
    Outbox,
    close_all,
    open_pipes,
    open_requests,
    open_ways_in,
    seal,
    write_all,
)
from casemate.walls.native.refusal import why_lost
from casemate.walls.native.running import Pump, RunningCell, RunningSession

if TYPE_CHECKING:
    from concurrent.futures import Future

    from casemate.model.plan import Plan
    from casemate.walls.wall import CellEnding, SessionSink, Sink


def _close_tree(ending: Future[CellEnding]) -> None:
    """Nobody wants what it has left."""
    if ending.exception() is None:
        os.close(ending.result().tree_fd)


class CellStarter(Pump):
    """A link, as far as it starts cells."""

    alive: bool
    _cells: dict[str, RunningCell]
    _lock: threading.Lock
    _closing: bool
    _outbox: Outbox

    def _send_posted(self) -> None:
        """Send what was posted as far as it goes. Under the lock."""

    def launch(self, request: dict[str, Any], fds: dict[str, int], sink: Sink) -> RunningCell:
        """Launch a cell with ``fds`` (given away) and fresh pipes for its output."""
        cell = RunningCell(self, request["id"], sink, open_pipes(fds))
        self._launch(cell, request, fds)
        return cell

    def _launch(self, cell: RunningCell, request: dict[str, Any], fds: dict[str, int]) -> None:
        if self._enter(cell, fds):
            self.send({**request, "op": "launch", "fds": list(fds)}, list(fds.values()))
            self.call(self.watch, cell)

    def open(self, request: dict[str, Any], fds: dict[str, int], sink: SessionSink) -> RunningSession:
        """Launch a session's cell, whose interpreter is executed, with ``fds`` (given away). Raises ``OSError``."""
        requests = open_requests(fds)
        cell = RunningSession(self, request["id"], sink, open_pipes(fds, requests), requests)
        self._launch(cell, request, fds)
        return cell

    def prepare(self, request: dict[str, Any], payload: int) -> RunningCell:
        """Launch a cell that waits for its program, with ``payload`` (given away). Raises ``OSError``."""
        fds = {"payload": payload}
        way_in, order = open_ways_in(fds)
        kind = RunningSession if request["session"] else RunningCell
        cell = kind(self, os.urandom(8).hex(), None, open_pipes(fds, way_in, order))
        cell.stdin, cell.order = way_in, order
        if self._enter(cell, fds):
            self.send({**request, "op": "launch", "id": cell.id, "fds": list(fds)}, list(fds.values()))
        return cell

    def begin(
        self,
        cell: RunningCell,
        message: dict[str, Any],
        fds: dict[str, int],
        stdin: bytes,
        sink: Sink | SessionSink,
    ) -> bool:
        """Give a cell that waits its program: ``message``, with ``fds``, and its standard input.

        Takes ``fds`` over and gives True; or gives False when the cell has ended meanwhile, and nothing has begun.
        Raises ``OSError`` when there is no memory for ``stdin``; then the cell ends.
        """
        with self._lock:
            if not self.alive or cell.is_over or cell.order < 0:
                return False
            order, way_in, program = cell.take_ways_in(sink)
        if program >= 0:
            os.close(program)
        try:
            seal(way_in, stdin)
        except OSError:
            os.close(order)  # which ends it
            raise
        finally:
            os.close(way_in)
        fds["order"] = order
        self.send({**message, "id": cell.id, "fds": list(fds)}, list(fds.values()))
        self.call(self.watch, cell)  # not before it is sent: the pump wakes, and would take this thread's turn
        return True

    def begin_now(self, cell: RunningCell, plan: Plan, order: bytes, sink: Sink | SessionSink) -> bool:
        """Give a cell that waits its program without a hop: the supervisor hears of it, and need not do anything.

        Gives False where that cannot be, and nothing has begun. Raises ``OSError``; then the cell is to be ended.
        """
        with self._lock:
            if not self._can_send() or cell.is_over or cell.program < 0:
                return False
            ways_in = cell.take_ways_in(sink)
        failure: OSError | None = None
        try:
            order_pipe, way_in, program = ways_in
            seal(way_in, plan.stdin)
            write_all(program, plan.code)
            # Its clock starts with the word, after which nothing is left but the order: between two calls other threads
            # of the application may hold the interpreter's lock.
            if is_given := self._send_word(cell, plan.deadline, len(order)):
                os.write(order_pipe, order)  # whole: it is no longer than a pipe takes in one piece
        except OSError as error:
            is_given, failure = False, error
        finally:
            close_all(ways_in)
        if is_given:
            self.call(self.watch, cell)  # the supervisor may wait until the order's pipe is closed
            return True
        cell.future.add_done_callback(_close_tree)
        cell.discard()
        if failure and not isinstance(failure, BrokenPipeError):  # that one: it has ended, and reads no more
            raise failure
        return False

    def _can_send(self) -> bool:
        """Whether the supervisor hears what is said now, and before it what was posted. Under the lock."""
        self._send_posted()
        return self.alive and not self._outbox.waits

    def _send_word(self, cell: RunningCell, deadline: float, order_size: int) -> bool:
        """Say that the host gives ``cell`` its program; whether the supervisor will hear that before anything later."""
        message = {"op": "begin", "id": cell.id, "deadline": deadline, "order_size": order_size}
        with self._lock:
            return self._can_send() and self._outbox.send_now(wire.encode({**message, "started": time.monotonic()}))

    def take_program(self, cell: RunningCell | None, fds: list[int]) -> None:
        """The file for the program of a cell that waits, which may have been given one meanwhile."""
        with self._lock:
            if cell is not None and cell.order >= 0 and fds:
                cell.program = fds.pop()
        close_all(fds)

    def _enter(self, cell: RunningCell, fds: dict[str, int]) -> bool:
        with self._lock:
            alive = self.alive
            if alive:
                self._cells[cell.id] = cell
        if not alive:
            close_all([*fds.values()])
            cell.lose(why_lost("", closing=self._closing))
        return alive
