"""How many cells of one kind should be ready. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = 0.1  # of the memory that is free, for all cells that wait
_REMEMBERED = 10.0  # seconds for which the most runs at once count as demand
IDLE = 30.0  # seconds without a run of its kind, after which a ready cell is ended
ZYGOTE_IDLE = 600.0  # seconds without a run, after which a zygote is ended
PAUSE = 0.02  # seconds without a run, after which there is time to make more
_HEADROOM = 1  # cells more than were ever used at once: the next run may come before another is made
MOST_MAKING = 2  # cells made at once: more would take time from runs


@dataclass(slots=True)
class Demand:
    """How one kind of cell was asked for: ``running`` now, the ``most`` at once lately, and ``since`` when that counts.

    Times are monotonic seconds.
    """

    running: int = 0
    most: int = 0
    since: float = 0.0
    last: float = 0.0

    def begin(self, now: float) -> None:
        """A run of this kind begins."""
        self.running += 1
        self.last = now
        if self.running >= self.most or now - self.since > _REMEMBERED:
            self.most, self.since = self.running, now

    def end(self, now: float) -> None:
        """A run of this kind has ended."""
        self.running -= 1
        self.last = max(self.last, now)


def target_size(demand: Demand, now: float, concurrency: int, free: int, cost: int) -> int:
    """Cells to have ready besides those that run, ``free`` bytes of memory being available and each taking ``cost``.

    While runs come one after the other only half of them are made up for: making more takes time from the runs.
    """
    if is_idle(demand, now):
        return 0
    affordable = int(free * _SHARE / max(1, cost))
    most = max(0, min(demand.most + _HEADROOM, concurrency - demand.running, affordable))
    return -(-most // 2) if is_busy(demand, now) else most


def has_just_ended(demand: Demand, now: float) -> bool:
    """Whether a run has ended a moment ago, so that there will soon be time."""
    return now - demand.last < 2 * PAUSE


def is_idle(demand: Demand, now: float) -> bool:
    """Whether no run has come for so long that its ready cells are ended."""
    return now - demand.last > IDLE


def is_busy(demand: Demand, now: float) -> bool:
    """Whether runs go on, or have done so a moment ago."""
    return demand.running > 0 or now - demand.last < PAUSE
