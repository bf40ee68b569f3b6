"""What may take long for a cell is done in a thread; the loop goes on, and what else is to be done for it waits."""

from __future__ import annotations

import _thread
import os
from functools import partial

from casemate.supervisor import kernel

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Do = Callable[[], object]
    Then = Callable[[Exception], object]


class Jobs:
    """``fd`` can be read when a thread is done. ``guard`` does something for a cell in the loop, whatever goes wrong.
    Without ``threads`` all is done there. Only the loop's own thread forks."""

    def __init__(self, guard: Callable[[str, Do], None], *, threads: bool) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waiting: dict[str, list[Do]] = {}  # cells for which something is done, and what to do then
        self._guard, self._threads = guard, threads
        self._done: list[tuple[str, Do]] = []

    def run(self, cell_id: str, do: Do, then: Do, else_do: Then | None = None, fds: Iterable[int] = ()) -> None:
        """Do it; then call ``then`` in the loop, or ``else_do`` with what went wrong, and close ``fds``."""

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
        except RuntimeError as error:  # there is no thread left
            self.release(cell_id, partial(go_on, error))

    def release(self, cell_id: str, do: Do) -> None:
        """What was done for the cell is over: go on with ``do``, and with what has waited."""
        waiting = self.waiting.pop(cell_id)
        self._guard(cell_id, do)
        for each in waiting:
            self.when_free(cell_id, each)

    def when_free(self, cell_id: str, do: Do) -> None:
        """Do it now, or when what is being done for the cell is over."""
        if cell_id in self.waiting:
            self.waiting[cell_id].append(do)
        else:
            self._guard(cell_id, do)

    def finish(self) -> None:
        """Go on where a thread is done."""
        for _ in range(os.eventfd_read(self.fd)):
            self.release(*self._done.pop(0))


def attempt(do: Do) -> Exception | None:
    """What goes wrong in ``do``; None where nothing does."""
    try:
        do()
    except Exception as error:  # noqa: BLE001 - who asked decides what it means
        return error
    return None
