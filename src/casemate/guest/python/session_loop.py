"""The event loop of a session: top-level ``await`` runs in it, and its tasks continue between steps.

Code without ``await`` runs outside it, so ``asyncio.run`` works there as in a program. The loop is made when a step
first needs it.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

from _casemate.session_frames import pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import OTHER, REQUESTS, interrupts  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

__all__ = ["__builtins__", "loop"]

_NO_DESCRIPTOR = -1
_MANY = 1 << 12  # bytes; more than the signals between two reads
_wake_by, _pipe, _read, _close = _signal.set_wakeup_fd, os.pipe2, os.read, os.close
_NO_WAITING = os.O_NONBLOCK | os.O_CLOEXEC


class _Waker:
    """Wakes the loop on a signal that comes just before it waits, when Python's handler would only run after the wait.

    A step's replacement (from ``add_signal_handler``) also wakes the loop, and stays. A waker is made for one step,
    because all cells of a zygote would share one made earlier.
    """

    def __init__(self, running: "Any") -> None:
        self._running = running
        self._read_end, self._write_end = _pipe(_NO_WAITING)
        try:
            running.add_reader(self._read_end, self._listen)
        except BaseException:
            self._close()
            raise
        replaced = _wake_by(self._write_end, warn_on_full_buffer=False)
        if replaced != _NO_DESCRIPTOR:
            _wake_by(replaced)

    def _listen(self) -> None:
        try:
            _read(self._read_end, _MANY)
        except OSError:
            pass  # a forked child has read it, or the step has closed it

    def remove(self) -> None:
        replaced = _wake_by(_NO_DESCRIPTOR)
        if replaced != self._write_end:
            _wake_by(replaced)
        try:
            self._running.remove_reader(self._read_end)
        finally:
            self._close()

    def _close(self) -> None:
        for end in (self._read_end, self._write_end):
            _close(end)


class _Loop:
    """The session's loop, once there is one."""

    def __init__(self) -> None:
        self._loop: "Any" = None

    def run(self, coroutine: "Coroutine[Any, Any, Any]") -> object:
        """Run the coroutine and return its result. An interrupt cancels it, and is raised when it has ended."""
        running = self._running_loop()
        task = running.create_task(coroutine)
        interruptions: "list[bool]" = []

        def cancel() -> None:
            interruptions.append(True)
            task.cancel()  # now: a callback would run after the task's next step, which may block forever
            running.call_soon_threadsafe(_wake_up)

        interrupts.cancel = cancel
        waker = _create_waker(running)
        try:
            while not task.done():
                try:
                    running.run_until_complete(task)
                except KeyboardInterrupt:
                    cancel()
                except BaseException:  # another task's exit, or the task's own end
                    continue
        finally:
            _remove_waker(waker)
            interrupts.cancel = None
        if interruptions:
            raise KeyboardInterrupt
        result: object = task.result()
        return result

    def offer(self) -> None:
        """Make ``asyncio.get_event_loop()`` return the loop again, since ``asyncio.run`` removes it."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and self._is_usable():
            try:
                asyncio.set_event_loop(self._loop)
            except Exception:
                return  # the user's code has broken asyncio

    def adopt(self) -> None:
        """Use the loop that the step made with ``asyncio.get_event_loop()``."""
        if self._is_usable():
            return
        policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
        step_loop = getattr(getattr(policy, "_local", None), "_loop", None)
        if step_loop is not None and not step_loop.is_closed():
            self._loop = step_loop
            interrupts.callback = _callback_code()

    def wait(self) -> None:
        """Run the remaining tasks until a request arrives. Returns at once if there is no loop."""
        if not self._is_usable():
            return
        try:
            self._loop.add_reader(REQUESTS, self._loop.stop)
            self._loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            pass  # from a task; the loop continues in the next wait
        except Exception:
            self._loop = None
        finally:
            self._stop_reading()

    def close(self) -> None:
        """Discard the loop after a rehearsal."""
        if self._is_usable():
            self._loop.close()
            sys.modules["asyncio"].set_event_loop(None)
        self._loop = None

    def stop_in_child(self) -> None:
        """End a child that a task forked between steps, so that it does not serve requests."""
        if self._loop is not None and interrupts.state == OTHER:
            self._loop.stop()

    def _stop_reading(self) -> None:
        try:
            if self._loop is not None and pipes.are_mine():
                self._loop.remove_reader(REQUESTS)
        except Exception:
            self._loop = None

    def _is_usable(self) -> bool:
        return self._loop is not None and not self._loop.is_closed()

    def _running_loop(self) -> "Any":
        import asyncio

        if not self._is_usable():
            self._loop = asyncio.new_event_loop()  # noqa: TID251 - in the cell
        asyncio.set_event_loop(self._loop)
        interrupts.callback = _callback_code()
        return self._loop


def _wake_up() -> None:
    """Do nothing; the call itself wakes the loop."""


def _create_waker(running: "Any") -> "_Waker | None":
    try:
        return _Waker(running)
    except Exception:  # no descriptors are left, or asyncio is broken; the host interrupts again after a second
        return None


def _remove_waker(waker: "_Waker | None") -> None:
    try:
        if waker is not None:
            waker.remove()
    except Exception:
        return  # the step has closed the loop or the descriptors


def _callback_code() -> "Any":
    """Return the code object that calls every callback of an asyncio loop."""
    return getattr(getattr(sys.modules.get("asyncio.events"), "Handle", None), "_run", _callback_code).__code__


loop = _Loop()
