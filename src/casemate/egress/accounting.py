"""Each cell's share of the egress proxy, the refusals, and the counts of crossings."""

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

_LEAST_SHARES = 4  # the fewest shares, even with fewer cells
_UNLIMITED = 1 << 16  # descriptors counted for a process without a limit


class DescriptorPool:
    """The descriptors of an egress proxy's cells: half of this process's limit. The application keeps the rest."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.all = (_UNLIMITED if soft == resource.RLIM_INFINITY else soft) // 2
        self.left = self.all
        self.shares = 0

    def share(self) -> DescriptorShare:
        """Return the share of one more cell."""
        self.shares += 1
        return DescriptorShare(self)


class DescriptorShare:
    """One cell's equal share of ``pot``."""

    def __init__(self, pot: DescriptorPool) -> None:
        self._pot = pot
        self._held = 0

    @property
    def most(self) -> int:
        return self._pot.all // max(_LEAST_SHARES, self._pot.shares)

    def take(self, count: int) -> bool:
        """Take ``count`` descriptors if they are available. Returns whether they were."""
        if self._held + count > self.most or count > self._pot.left:
            return False
        self._held += count
        self._pot.left -= count
        return True

    def give(self, count: int) -> None:
        """Give back ``count`` closed descriptors."""
        self._held -= count
        self._pot.left += count

    def end(self) -> None:
        """End the share. Descriptors that are still open are given back as they close."""
        self._pot.shares -= 1


_SHARE = 0.25  # of the loop's time for one cell, on average
_BURST = 0.05  # seconds of work at once
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class TimeShare:
    """One cell's share of the egress proxy's time, however many connections it has. Its connections take turns in the
    order of their calls: one short step each, and then the event loop runs everything else. Steps are counted by
    processor time; a cell that used more than its share waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._taken = 0.0  # seconds of work beyond the share
        self._seen = self._loop.time()

    async def run(self, step: Callable[_Given, _Made], *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        """Run ``step``, which must be short, when it is its turn. Returns or raises what it does."""
        async with self._lock:
            await asyncio.sleep(self._wait())
            begun = time.thread_time()
            try:
                return step(*args, **kwargs)
            finally:
                self._taken += time.thread_time() - begun

    def _wait(self) -> float:
        """Seconds until the next step. 0 still lets everything else that is ready run first."""
        now = self._loop.time()
        self._taken = max(0.0, self._taken - (now - self._seen) * _SHARE)
        self._seen = now
        return max(0.0, self._taken - _BURST) / _SHARE


_MOST_HOST = 253  # characters of a name (RFC 1035, section 2.3.4, without the root label)
_MOST_REASON = 200  # characters


class EgressRefused(Exception):
    """The terms do not allow it. ``reason`` names the rule or policy, ``remedy`` what would allow it."""

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
    """It was allowed but could not be reached."""

    def __str__(self) -> str:
        return f"casemate: {self.host}:{self.port} cannot be reached: {self.reason}."


class Spent(Exception):
    """The cell has transferred more bytes than it may."""


def host_as_text(host: str) -> str:
    """Return a requested host, safe to show: ASCII without spaces, at most as long as a name may be."""
    return "".join(c if 0x20 < ord(c) < 0x7F else "?" for c in host[:_MOST_HOST]) or "?"


def reason_as_text(reason: str) -> str:
    """Return a reason, safe to show and to store: short ASCII."""
    return "".join(c if 0x20 <= ord(c) < 0x7F else "?" for c in reason[:_MOST_REASON])


_MOST_ENTRIES = 256  # distinct entries of a kind; a cell can invent any number of names
OTHERS = "(others)"


@dataclass(slots=True)
class ConnectionTally:
    is_reached: bool
    connections: int = 0
    bytes_out: int = 0
    bytes_in: int = 0


class Ledger:
    """The counts of one cell's crossings. Reached, unreached and denied crossings have separate bounds, so that none
    can crowd out the others. ``told`` is called once for each new kind of crossing, in the proxy's thread."""

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
        """Count one connection. The returned tally counts its bytes."""
        key = (host_as_text(host), port, decision, reason_as_text(reason))
        kind = (decision, is_reached)
        with self._lock:
            if key not in self._tallies and self._entries[kind] >= _MOST_ENTRIES:
                reached = "reached" if is_reached else "not reached"
                key = (OTHERS, 0, decision, f"{reached}: more names than are listed")
            is_new = key not in self._tallies
            self._entries[kind] += is_new
            tally = self._tallies.setdefault(key, ConnectionTally(is_reached=is_reached))
            tally.connections += 1
        if is_new and self._told is not None:
            self._told(_make_crossing(key, tally))
        return tally

    def count_question(self, host: str, port: int) -> int:
        """Count an approval request for a host and return how many there were so far."""
        key = (host, port) if len(self._asked) < _MOST_ENTRIES or (host, port) in self._asked else (OTHERS, 0)
        self._asked[key] = self._asked.get(key, 0) + 1
        return self._asked[key]

    def spend(self, count: int, most: int) -> None:
        """Add to the cell's bytes. Raises :class:`Spent` beyond ``most``."""
        self.total += count
        if self.total > most:
            raise Spent(f"the cell has transferred more than its limit of {most} bytes")

    def crossings(self) -> tuple[Crossing, ...]:
        """Return all crossings in the order of first occurrence. Callable from any thread."""
        with self._lock:
            return tuple(_make_crossing(key, tally) for key, tally in self._tallies.items())


def _make_crossing(key: tuple[str, int, Literal["allowed", "denied"], str], tally: ConnectionTally) -> Crossing:
    return Crossing(*key, tally.connections, tally.bytes_out, tally.bytes_in, tally.is_reached)
