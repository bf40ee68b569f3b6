"""The door to the network of one cell: open while its program runs."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from casemate.egress.door import Door, Opening, Terms
    from casemate.model.crossing import Crossing
    from casemate.policy.hosts import HostRules


class Listening(Protocol):
    """A cell in whose network the host has sockets."""

    def listeners(self) -> Future[list[int]]:
        """Descriptors of the name server's socket and the proxy's."""
        ...

    def listen(self, addresses: Sequence[tuple[str, int]]) -> Future[list[int]]:
        """More of them."""
        ...


class Outside:
    """A sandbox's door to the network, which is there from the first cell on that may use it."""

    def __init__(self, local_ports: tuple[int, ...] = ()) -> None:
        """``local_ports``: of the host's loopback, which cells may reach."""
        self._local_ports = local_ports
        self._lock = threading.Lock()
        self._door: Door | None = None

    def doorway(self, hosts: HostRules | None, cell: Listening) -> Doorway:
        """The door of one cell, which lets through what ``hosts`` say; None for a cell that has none."""
        if hosts is None:
            return Doorway(None, None, cell)
        from casemate.egress.door import Door, Terms  # not before: it takes longer to load than a cell to start

        with self._lock:
            self._door = self._door or Door()
            return Doorway(self._door, Terms(hosts, local_ports=self._local_ports), cell)

    def close(self) -> None:
        """End every connection. Bounded; harmless when repeated."""
        with self._lock:
            if self._door is not None:
                self._door.close()


class Doorway:
    """What one cell has of the door: nothing until its sockets are there, and where it has no terms."""

    def __init__(self, door: Door | None, terms: Terms | None, cell: Listening) -> None:
        self._door = door
        self._terms = terms
        self._cell = cell
        self._lock = threading.Lock()
        self._is_closed = False
        self._opening: Opening | None = None
        if terms is not None:
            cell.listeners().add_done_callback(self._open)

    def change(self, terms: Terms) -> None:
        """From now on these are the terms."""
        with self._lock:
            self._terms = terms
            if self._opening is not None:
                self._opening.change(terms)

    def crossings(self) -> tuple[Crossing, ...]:
        """What has crossed, or tried to."""
        return () if self._opening is None else self._opening.crossings()

    def end(self) -> Future[None] | None:
        """End every connection, from any thread; what is done when that has happened. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
            return None if self._opening is None else self._opening.close()

    async def close(self) -> None:
        """The same, and wait for it unless cancelled."""
        closing = self.end()
        if closing is not None:
            await asyncio.wait([asyncio.wrap_future(closing)])

    def _open(self, made: Future[list[int]]) -> None:
        if made.cancelled() or made.exception() is not None:
            return  # the cell ended before; whoever waits for it hears why
        with self._lock:
            if not self._is_closed and self._door and self._terms:
                self._opening = self._door.open(self._terms, self._cell, *made.result())
                return
        for fd in made.result():
            os.close(fd)
