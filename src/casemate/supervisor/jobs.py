"""Runs slow work for a cell in a thread. The loop goes on; further work for that cell waits."""

from __future__ import annotations

import _thread
import os
from functools import partial

from casemate.supervisor import kernel

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Do = Callable[[], object]
    Then = Callable[[Exception], object]


class Jobs:
    """``guard`` runs a function for a cell in the loop and handles its errors. Without ``threads``, all work runs in
    the loop. Only the loop's own thread forks."""

    def __init__(self, guard: Callable[[str, Do], None], *, threads: bool) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable when a thread is done
        self.waiting: dict[str, list[Do]] = {}  # by cell with a running job: what to do afterwards
        self._guard, self._threads = guard, threads
        self._done: list[tuple[str, Do]] = []

    def run(self, cell_id: str, do: Do, then: Do, else_do: Then | None = None, fds: Iterable[int] = ()) -> None:
        """Run ``do``, then call ``then`` in the loop, or ``else_do`` with the error. Close ``fds`` at the end."""

        def go_on(error: Exception | None) -> None:
            try:
                if error and else_do is None:
                    raise error
                else_do(error) if error and else_do else then()
            finally:
                kernel.close_all(fds)

        def work() -> None:
            self._done.append((cell_id, partial(go_on, attempt(do))))
            os.eventfd_write(self.fd, 1)

        self.waiting[cell_id] = []
        try:
            if self._threads:
                _thread.start_new_thread(work, ())
            else:
                self.release(cell_id, partial(go_on, attempt(do)))
        except RuntimeError as error:  # no thread can be started
            self.release(cell_id, partial(go_on, error))

    def release(self, cell_id: str, do: Do) -> None:
        """End the cell's job: call ``do``, then what has waited."""
        waiting = self.waiting.pop(cell_id)
        self._guard(cell_id, do)
        for each in waiting:
            self.when_free(cell_id, each)

    def when_free(self, cell_id: str, do: Do) -> None:
        """Call ``do`` now, or after the cell's running job."""
        if cell_id in self.waiting:
            self.waiting[cell_id].append(do)
        else:
            self._guard(cell_id, do)

    def finish(self) -> None:
        """Finish the jobs whose threads are done."""
        for _ in range(os.eventfd_read(self.fd)):
            self.release(*self._done.pop(0))


def attempt(do: Do) -> Exception | None:
    """Call ``do`` and return its error, or None."""
    try:
        do()
    except Exception as error:  # noqa: BLE001 - the caller decides what it means
        return error
    return None
