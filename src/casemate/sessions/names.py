"""The names that a session's user has bound, and those that went with an interpreter. Pure."""

from __future__ import annotations

from casemate.sessions.outcome import State
from casemate.sessions.protocol import Finished

_MOST = 10_000  # names that are kept for the day when they are lost


class Names:
    """What would be lost with the interpreter, and what was, until a step has told of it."""

    def __init__(self) -> None:
        self._bound: dict[str, None] = {}
        self._lost: tuple[str, ...] | None = None

    def bind(self, finished: Finished) -> None:
        """A step is over."""
        for name in finished.gone:
            self._bound.pop(name, None)
        self._bound.update(dict.fromkeys(finished.new[: _MOST - len(self._bound)]))

    def add(self, name: str) -> None:
        """One was bound from outside."""
        self._bound[name] = None

    def lose(self) -> None:
        """The interpreter has ended, with all that it knew."""
        self._lost = tuple(dict.fromkeys((*(self._lost or ()), *self._bound)))[:_MOST]
        self._bound.clear()

    def forget(self) -> None:
        """The state was given up on purpose: nobody needs to be told."""
        self._bound.clear()
        self._lost = None

    def state_after(self, finished: Finished | None) -> State:
        """What a step has to tell: its interpreter ended with it, or one had ended before it began, or neither."""
        lost, self._lost = self._lost, None
        if finished is None:
            self.lose()
            return State(kept=False, lost=tuple(dict.fromkeys((*(lost or ()), *(self._lost or ())))))
        self.bind(finished)
        return State(kept=True) if lost is None else State(kept=False, lost=lost)
