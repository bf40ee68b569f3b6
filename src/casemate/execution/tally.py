"""How many executions came to their end, and how."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casemate.model.execution import Execution


class Tally:
    """Counts executions: ``by_status``, and ``cpu_seconds`` and ``peak_memory`` (bytes, of the largest) of all. Used in
    one event loop. ``since``: Unix time."""

    def __init__(self) -> None:
        self.since = time.time()
        self.by_status: Counter[str] = Counter()
        self.cpu_seconds = 0.0
        self.peak_memory = 0

    def add(self, execution: Execution) -> None:
        """One more that came to its end."""
        self.by_status[execution.status] += 1
        self.cpu_seconds += execution.usage.cpu_seconds
        self.peak_memory = max(self.peak_memory, execution.usage.peak_memory)

    def before(self, further: Callable[[Execution], None]) -> Callable[[Execution], None]:
        """What is told of an execution, counts it and tells ``further``."""

        def add_and_hand_on(execution: Execution) -> None:
            self.add(execution)
            further(execution)

        return add_and_hand_on
