"""Decides how many cells of one kind to keep ready."""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = 0.1  # of the free memory, for all ready cells
_REMEMBERED = 10.0  # seconds for which the peak of concurrent runs counts as demand
IDLE = 30.0  # seconds without a run of its kind before a ready cell is ended
ZYGOTE_IDLE = 600.0  # seconds without a run before a zygote is ended
PAUSE = 0.02  # seconds without a run before more cells are made
_HEADROOM = 1  # cells beyond the peak: the next run may come before another cell is ready
MOST_MAKING = 2  # cells made at once; more would slow runs


@dataclass(slots=True)
class Demand:
    """The recent demand for one kind of cell. Times are monotonic seconds."""

    running: int = 0
    most: int = 0  # the recent peak of `running`
    since: float = 0.0  # when `most` was reached
    last: float = 0.0  # when the last run began or ended

    def begin(self, now: float) -> None:
        self.running += 1
        self.last = now
        if self.running >= self.most or now - self.since > _REMEMBERED:
            self.most, self.since = self.running, now

    def end(self, now: float) -> None:
        """Note that a cell has ended."""
        self.running -= 1
        self.last = max(self.last, now)


def target_size(demand: Demand, now: float, concurrency: int, free: int, cost: int) -> int:
    """Return how many cells to keep ready, given ``free`` bytes of memory and the ``cost`` in bytes of each.

    While runs follow one another only half of them are replaced, because making cells slows the runs.
    """
    if is_idle(demand, now):
        return 0
    affordable = int(free * _SHARE / max(1, cost))
    most = max(0, min(demand.most + _HEADROOM, concurrency - demand.running, affordable))
    return -(-most // 2) if is_busy(demand, now) else most


def has_just_ended(demand: Demand, now: float) -> bool:
    """Whether a run ended so recently that there will soon be time to make cells."""
    return now - demand.last < 2 * PAUSE


def is_idle(demand: Demand, now: float) -> bool:
    """Whether the last run was so long ago that its ready cells are ended."""
    return now - demand.last > IDLE


def is_busy(demand: Demand, now: float) -> bool:
    """Whether a run is going on, or ended a moment ago."""
    return demand.running > 0 or now - demand.last < PAUSE
