"""The door to the network of one cell: open while its program runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from casemate.errors import CasemateError
from casemate.model.approval import Question, Verdict
from casemate.model.crossing import Crossing
from casemate.model.plan import DOOR_SOCKETS, Listener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from casemate.approvals.asker import Asker
    from casemate.egress.door import Door, Opening, Terms
    from casemate.execution.admit import Admitted
    from casemate.execution.house import Log
    from casemate.model.request import Request
    from casemate.policy.hosts import HostRules
    from casemate.policy.requests import RequestRules
    from casemate.redaction.redaction import Redaction


_CLOSE_WITHIN = 1.0  # seconds; a door that is busy closes a dead cell's connections a little later
Note = Callable[[Crossing], None]


def noting(log: Log, request: Request, redaction: Redaction | None) -> Note:
    """Puts crossings of ``request``'s run on record, where that takes no time: its outcome has them in any case."""

    def note(crossing: Crossing) -> None:
        from casemate.execution.redact import redacted_crossings

        (told,) = redacted_crossings([crossing], redaction)
        with contextlib.suppress(CasemateError):
            log.crossing(request.id, request.namespace, asdict(told), wait=False)

    return note


class Listening(Protocol):
    """A cell in whose network the host has sockets."""

    def listeners(self) -> Future[list[int]]:
        """Descriptors of those that it began with."""
        ...

    def listen(self, sockets: Sequence[Listener]) -> Future[list[int]]:
        """More of them."""
        ...


class Outside:
    """A sandbox's door to the network, which is there from the first cell on that may use it."""

    def __init__(self, requests: RequestRules) -> None:
        """``requests``: what may be asked of hosts in clear."""
        self.requests = requests
        self._lock = threading.Lock()
        self._door: Door | None = None

    def doorway(self, admitted: Admitted, cell: Listening, asker: Asker | None, note: Note) -> Doorway:
        """The door of one cell, for what was admitted; what no rule covers is asked of ``asker``."""
        made = Doorway(self, admitted.through, cell, note)
        if admitted.opens:
            made.open(asker, cell.listeners())
        return made

    def door(self) -> Door:
        """The door itself."""
        from casemate.egress.door import Door  # not before: it takes longer to load than a cell to start

        with self._lock:
            self._door = self._door or Door()
            return self._door

    def close(self) -> None:
        """End every connection. Bounded; harmless when repeated."""
        with self._lock:
            door = self._door
        if door is not None:
            door.close()


class Doorway:
    """What one cell has of the door; nothing until its sockets are there. ``hosts``: what crosses without asking, None
    where nothing ever may."""

    def __init__(self, outside: Outside, hosts: HostRules | None, cell: Listening, note: Note) -> None:
        """``note`` puts a new kind of crossing on record; it may be set anew."""
        self.note = note
        self._outside = outside
        self._hosts = hosts
        self._cell = cell
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_open = False
        self._terms: Terms | None = None
        self._opening: Opening | None = None
        self._problem = ""

    def open(self, asker: Asker | None, sockets: Future[list[int]]) -> None:
        """Open it as soon as its ``sockets`` are there."""
        self._is_open = True
        self.change(asker)
        door = self._outside.door()
        sockets.add_done_callback(lambda made: self._begin(door, made))

    async def let_ask(self, asker: Asker) -> None:
        """From now on what no rule covers is asked of ``asker``. A door that was not needed so far opens for that."""
        import asyncio  # it loads while the supervisor starts, so not before

        if self._hosts is None:
            return
        if self._is_open:
            self.change(asker)
            return
        sockets = self._cell.listen(DOOR_SOCKETS)
        self.open(asker, sockets)
        await asyncio.wait([asyncio.wrap_future(sockets)])

    def change(self, asker: Asker | None) -> None:
        """From now on what no rule covers is asked of ``asker``, or of nobody."""
        if not self._is_open or self._hosts is None:
            return
        from casemate.egress.door import Terms

        asking = None if asker is None else Asking(asker)
        with self._lock:
            hosts, requests = self._hosts, self._outside.requests
            self._terms = Terms(hosts, asker=asking, local_ports=hosts.local_ports, requests=requests)
            if self._opening is not None:
                self._opening.change(self._terms)

    def crossings(self) -> tuple[Crossing, ...]:
        """What has crossed, or tried to; and once, why nothing could."""
        if self._problem:
            return (Crossing("(door)", 0, "denied", self._problem, 0),)
        return () if self._opening is None else self._opening.crossings()

    def end(self) -> Future[None] | None:
        """End every connection, from any thread; what is done when that has happened. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
            return None if self._opening is None else self._opening.close()

    async def close(self) -> None:
        """The same, and wait for it, bounded, unless cancelled."""
        import asyncio

        closing = self.end()
        if closing is not None:
            await asyncio.wait([asyncio.wrap_future(closing)], timeout=_CLOSE_WITHIN)

    def _begin(self, door: Door, made: Future[list[int]]) -> None:
        if made.cancelled():
            return  # the cell ended before; whoever waits for it hears why
        try:
            names, proxy = made.result()
            with self._lock:
                if not self._is_closed and self._terms is not None:
                    self._opening = door.open(self._terms, _Tcp(self._cell), names, proxy, self._noted)
                    self._problem = ""
                    return
        except (OSError, CasemateError) as error:  # then there is no network, and the result says so
            self._problem, self._is_open = f"it could not be opened: {error}", False
            return
        for fd in (names, proxy):
            os.close(fd)

    def _noted(self, crossing: Crossing) -> None:
        self.note(crossing)


@dataclass(frozen=True, slots=True)
class Asking:
    """The door's questions, as the plane takes them."""

    asker: Asker

    def decide(self, host: str, port: int, how_often: int) -> Future[bool]:
        """Whether the connection may be made. From any thread."""
        again = f", for the {how_often}th time" if how_often > 1 else ""
        question = Question("egress", f"connect to {host}, port {port}{again}", {"host": host, "port": port})
        answer: Future[bool] = Future()
        answer.set_running_or_notify_cancel()

        def told(verdict: Future[Verdict]) -> None:
            answer.set_result(verdict.result().allow)

        self.asker.decide(question).add_done_callback(told)
        return answer


@dataclass(frozen=True, slots=True)
class _Tcp:
    """More listeners of the door's in a cell."""

    cell: Listening

    def listen(self, addresses: Sequence[tuple[str, int]]) -> Future[list[int]]:
        return self.cell.listen([Listener("tcp", *place) for place in addresses])
