"""Who wants to be looked at next, however many there are."""

from __future__ import annotations

import heapq

_NEVER = float("inf")


class Due:
    """Times (monotonic seconds) by name, the earliest first."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # with times that have been put anew since, and are passed over

    def put(self, name: str, when: float) -> None:
        """``name`` wants to be looked at then, and not when it wanted before."""
        if self._times.get(name) != when:
            self._times[name] = when
            if when < _NEVER:
                heapq.heappush(self._heap, (when, name))

    def drop(self, name: str) -> None:
        """It is gone. Harmless when repeated."""
        self._times.pop(name, None)

    def take(self, now: float) -> list[str]:
        """Whose time has come; each is forgotten until it is put again."""
        names = []
        while self.next() <= now:
            name = heapq.heappop(self._heap)[1]
            del self._times[name]
            names.append(name)
        return names

    def next(self) -> float:
        """The earliest time."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else _NEVER
