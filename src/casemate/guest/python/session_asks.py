"""Asking the host before a shell command runs, where it wants that. This keeps nothing in: the walls do.

The answer comes through the pipe of requests, where nothing else comes while a step runs. Whoever waits reads it, for
the others too; when the step ends nobody waits any more, and an answer that is still on its way is passed over.
"""

from _thread import allocate_lock
from select import POLLIN, poll

from _casemate.session_frames import pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import REQUESTS, interrupts  # type: ignore[import-not-found]
from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import steps  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["__builtins__", "asks"]

_MOST = 1 << 20  # characters of a command: nobody looks through more
_LOOK_MS = 50  # how long a thread waits at most before it sees that its step is over


class _Asks:
    """``is_wanted``: whether the host wants to be asked in the step that runs."""

    __slots__ = ("_answers", "_count", "_lock", "is_wanted")

    def __init__(self) -> None:
        self.is_wanted = False
        self._answers: "dict[int, dict[str, Any]]" = {}
        self._count = 0
        self._lock = allocate_lock()  # of who reads

    def begin(self, is_wanted: bool) -> None:
        """A step begins."""
        self._answers.clear()
        self.is_wanted = is_wanted

    def end(self) -> None:
        """The step is over: wait until nobody reads any more."""
        self.is_wanted = False
        with self._lock:
            return

    def permission(self, command: str, given: "str | None" = None) -> None:
        """Wait until the host allows it. Raises ``PermissionError`` when it does not."""
        if self.is_wanted:
            self._wait(self._ask(command, given))

    def _ask(self, command: str, given: "str | None") -> int:
        step = steps.current()
        if not pipes.are_mine() or step is not steps.running:
            raise PermissionError("a command has to be allowed, and nobody can be asked: its step is over")
        if len(command) + len(given or "") > _MOST:
            raise PermissionError("a command has to be allowed, and this one is too long to be shown")
        self._count += 1
        number = self._count
        arguments = {"command": command} if given is None else {"command": command, "input": given}
        step.fields("ask", id=number, kind="shell", arguments=arguments)
        return number

    def _wait(self, number: int) -> None:
        while self.is_wanted:
            with self._lock:
                answer = self._answers.pop(number, None)
                if answer is None and self.is_wanted:
                    self._read()
            if answer is not None:
                if answer["allow"] is not True:
                    raise PermissionError("the command was not allowed: " + (answer["reason"] or "it was denied"))
                return
        raise PermissionError("the command was not allowed: its step is over")

    def _read(self) -> None:
        """One more answer, if it is there soon. Under the lock."""
        waiter = poll()
        waiter.register(REQUESTS, POLLIN)
        if not waiter.poll(_LOOK_MS):
            return
        interrupts.hold()
        try:
            answer = pipes.receive()
            if answer is None:
                self.is_wanted = False
            elif answer["op"] == "answer":
                self._answers[answer["id"]] = answer
        finally:
            interrupts.release()

    def renew_lock(self) -> None:
        """In a forked child."""
        self._lock = allocate_lock()


asks = _Asks()
