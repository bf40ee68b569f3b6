"""What each cell may use of the egress proxy, why connections are refused, and the count of what crossed."""

from __future__ import annotations

import asyncio
import collections
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar

from casemate.model.execution import Crossing

_LEAST_SHARES = 4  # into which they are divided, however few cells there are
_UNLIMITED = 1 << 16  # descriptors of a process that has no limit


class DescriptorPool:
    """How many all cells of an egress proxy may hold: half of what this process may have, so that cells cannot take
    them all from the application."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.all = (_UNLIMITED if soft == resource.RLIM_INFINITY else soft) // 2
        self.left = self.all
        self.shares = 0

    def share(self) -> DescriptorShare:
        """One cell's."""
        self.shares += 1
        return DescriptorShare(self)


class DescriptorShare:
    """What one cell may hold of ``pot``: as much as every other, so that it cannot take them all from these."""

    def __init__(self, pot: DescriptorPool) -> None:
        self._pot = pot
        self._held = 0

    @property
    def most(self) -> int:
        """How many it may hold now."""
        return self._pot.all // max(_LEAST_SHARES, self._pot.shares)

    def take(self, count: int) -> bool:
        """Whether it may hold ``count`` more; it does, then."""
        if self._held + count > self.most or count > self._pot.left:
            return False
        self._held += count
        self._pot.left -= count
        return True

    def give(self, count: int) -> None:
        """They are closed again."""
        self._held -= count
        self._pot.left += count

    def end(self) -> None:
        """Nobody takes of it any more. What it still holds is given as it is closed."""
        self._pot.shares -= 1


_SHARE = 0.25  # of the loop's time that one cell may take, on average
_BURST = 0.05  # seconds of work that it may take at once
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class TimeShare:
    """Of one cell, whose connections take them one after the other, in the order in which they ask: one small step, and
    then everything else is looked at. So cells share the egress proxy's time, however many connections each has.

    Steps are counted by the processor time that they took; a cell that took more than its share waits.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._taken = 0.0  # seconds of work, less what the share has allowed since
        self._seen = self._loop.time()

    async def run(self, step: Callable[_Given, _Made], *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        """What ``step`` gives or raises, when it is its turn. It must be short."""
        async with self._lock:
            await asyncio.sleep(self._wait())
            begun = time.thread_time()
            try:
                return step(*args, **kwargs)
            finally:
                self._taken += time.thread_time() - begun

    def _wait(self) -> float:
        """Seconds until the next step may be taken; 0 is after everything else that is ready."""
        now = self._loop.time()
        self._taken = max(0.0, self._taken - (now - self._seen) * _SHARE)
        self._seen = now
        return max(0.0, self._taken - _BURST) / _SHARE


_MOST_HOST = 253  # characters of a name (RFC 1035, section 2.3.4, without the root's)
_MOST_REASON = 200  # characters


class EgressRefused(Exception):
    """Something that the terms do not allow. ``reason``: which rule or policy; ``remedy``: what would allow it."""

    def __init__(self, host: str, port: int, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.host = host_as_text(host)
        self.port = port
        self.reason = reason_as_text(reason)
        self.remedy = remedy

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.port else self.host
        text = f"casemate: {where} is refused: {self.reason}."
        return f"{text} {self.remedy}" if self.remedy else text


class Unreachable(EgressRefused):
    """Something that was allowed and could not be reached."""

    def __str__(self) -> str:
        return f"casemate: {self.host}:{self.port} cannot be reached: {self.reason}."


class Spent(Exception):
    """The cell has used up what it may transfer, or a connection its time."""


def host_as_text(host: str) -> str:
    """What a cell asked for, safe to show: ASCII without spaces, and as long as a name may be."""
    return "".join(c if 0x20 < ord(c) < 0x7F else "?" for c in host[:_MOST_HOST]) or "?"


def reason_as_text(reason: str) -> str:
    """Why, safe to show and to keep: ASCII, and short."""
    return "".join(c if 0x20 <= ord(c) < 0x7F else "?" for c in reason[:_MOST_REASON])


_MOST_ENTRIES = 256  # of a kind that are told apart; a cell may invent as many names as it likes
OTHERS = "(others)"


@dataclass(slots=True)
class ConnectionTally:
    """Counts of connections that were decided alike."""

    is_reached: bool
    connections: int = 0
    bytes_out: int = 0
    bytes_in: int = 0


class Ledger:
    """What was reached, what was allowed and not reached, and what was denied have room of their own: none of them can
    hide another by its number. ``told`` is called with each new kind of crossing, once, in the egress proxy's
    thread."""

    def __init__(self, told: Callable[[Crossing], None] | None) -> None:
        self._told = told
        self._tallies: dict[tuple[str, int, Literal["allowed", "denied"], str], ConnectionTally] = {}
        self._entries = collections.Counter[tuple[str, bool]]()
        self._asked: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self.total = 0  # bytes, both ways

    def note(
        self, host: str, port: int, decision: Literal["allowed", "denied"], reason: str, *, is_reached: bool = False
    ) -> ConnectionTally:
        """Count one connection; its bytes are counted by the tally that is given back."""
        key = (host_as_text(host), port, decision, reason_as_text(reason))
        kind = (decision, is_reached)
        with self._lock:
            if key not in self._tallies and self._entries[kind] >= _MOST_ENTRIES:
                reached = "reached" if is_reached else "not reached"
                key = (OTHERS, 0, decision, f"{reached}: more names than are told apart")
            is_new = key not in self._tallies
            self._entries[kind] += is_new
            tally = self._tallies.setdefault(key, ConnectionTally(is_reached=is_reached))
            tally.connections += 1
        if is_new and self._told is not None:
            self._told(_make_crossing(key, tally))
        return tally

    def count_question(self, host: str, port: int) -> int:
        """The so-manieth time it is that somebody is asked about it."""
        key = (host, port) if len(self._asked) < _MOST_ENTRIES or (host, port) in self._asked else (OTHERS, 0)
        self._asked[key] = self._asked.get(key, 0) + 1
        return self._asked[key]

    def spend(self, count: int, most: int) -> None:
        """Add to the bytes of the cell. Raises :class:`Spent` beyond ``most``."""
        self.total += count
        if self.total > most:
            raise Spent(f"the cell has transferred more than the {most} bytes that it may")

    def crossings(self) -> tuple[Crossing, ...]:
        """All there were, in the order in which they were first seen. From any thread."""
        with self._lock:
            return tuple(_make_crossing(key, tally) for key, tally in self._tallies.items())


def _make_crossing(key: tuple[str, int, Literal["allowed", "denied"], str], tally: ConnectionTally) -> Crossing:
    return Crossing(*key, tally.connections, tally.bytes_out, tally.bytes_in, tally.is_reached)
