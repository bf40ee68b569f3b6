"""Where names lie in one cell's network: an address for each, for the cell's life, and listeners there, as they are
needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import os
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from casemate.egress.terms import ADDRESS_RANGE, DoorLimits, Network

_RESERVED = 256  # addresses at the beginning of the range that are the door's own
_LISTEN_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Place:
    """What stands for one name. ``listeners`` by port; ``lock``: one at a time adds to them."""

    name: str
    address: str
    listeners: dict[int, socket.socket] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Descriptors:
    """How many descriptors all openings of a door may hold: half of what this process may have, so that cells cannot
    take them all from the application."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._left = (1 << 16 if soft == resource.RLIM_INFINITY else soft) // 2

    def take(self, count: int) -> bool:
        """Whether there were ``count`` left; they are not any more."""
        if count > self._left:
            return False
        self._left -= count
        return True

    def give(self, count: int) -> None:
        """They are closed again."""
        self._left += count


class Places:
    """Of one cell. ``begin`` is called with each new listener, its name and port; ``end`` before one is closed."""

    def __init__(
        self,
        network: Network,
        descriptors: Descriptors,
        begin: Callable[[socket.socket, str, int], None],
        end: Callable[[socket.socket], None],
    ) -> None:
        self._network, self._descriptors, self._begin, self._end = network, descriptors, begin, end
        self._by_name: dict[str, Place] = {}  # the one that was asked for longest ago first
        self._by_address: dict[str, str] = {}
        self._range = ipaddress.IPv4Network(ADDRESS_RANGE)
        self._is_closed = False

    def name_at(self, address: str) -> str | None:
        """The name that ``address`` stands for."""
        return self._by_address.get(address)

    def listeners(self) -> Iterator[socket.socket]:
        """All that are open."""
        return (one for place in self._by_name.values() for one in place.listeners.values())

    async def reach(self, name: str, ports: tuple[int, ...], limits: DoorLimits) -> str | None:
        """The address of ``name``, with somebody listening there at ``ports``. None where no more can be had: too many
        names or descriptors, or a cell that is gone."""
        place = self._place(name, limits)
        if place is None:
            return None
        async with place.lock:
            missing = [port for port in ports if port not in place.listeners]
            if missing and not await self._listen(place, missing, limits):
                return None
        return place.address

    def close(self) -> None:
        """Close every listener; there will be no more."""
        self._is_closed = True
        for place in self._by_name.values():
            self._close(place)

    def _place(self, name: str, limits: DoorLimits) -> Place | None:
        place = self._by_name.pop(name, None)
        if place is None:
            if len(self._by_name) >= min(limits.names, self._range.num_addresses - _RESERVED - 1):
                return None
            place = Place(name, str(self._range[_RESERVED + len(self._by_name)]))
            self._by_address[place.address] = name
        self._by_name[name] = place
        return place

    async def _listen(self, place: Place, ports: list[int], limits: DoorLimits) -> bool:
        self._make_room(place, len(ports), limits.listeners)
        if len(ports) > limits.listeners or not self._descriptors.take(len(ports)):
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def arrived(made: concurrent.futures.Future[list[int]]) -> None:
            """In whatever thread."""
            fds = _result(made)
            try:
                loop.call_soon_threadsafe(self._take, place, ports, fds, waiter)
            except RuntimeError:  # the door is gone
                _close_all(fds)

        self._network.listen([(place.address, port) for port in ports]).add_done_callback(arrived)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_SECONDS):
                await waiter
        return all(port in place.listeners for port in ports)

    def _take(self, place: Place, ports: list[int], fds: list[int], waiter: asyncio.Future[None]) -> None:
        """Descriptors have come, or none; perhaps nobody waits for them any more."""
        if self._is_closed or len(fds) != len(ports) or any(port in place.listeners for port in ports):
            _close_all(fds)
            self._descriptors.give(len(ports))
        else:
            for port, fd in zip(ports, fds, strict=True):
                listener = socket.socket(fileno=fd)
                listener.setblocking(False)
                place.listeners[port] = listener
                self._begin(listener, place.name, port)
        if not waiter.done():
            waiter.set_result(None)

    def _make_room(self, for_place: Place, count: int, most: int) -> None:
        """Close listeners of the names that were asked for longest ago. When such a name is asked for again, there is
        somebody at its address again."""
        is_open = sum(len(place.listeners) for place in self._by_name.values())
        for place in list(self._by_name.values()):
            if is_open + count <= most:
                return
            if place is not for_place and not place.lock.locked():
                is_open -= len(place.listeners)
                self._close(place)

    def _close(self, place: Place) -> None:
        for listener in place.listeners.values():
            self._end(listener)
            listener.close()
            self._descriptors.give(1)
        place.listeners.clear()


def _result(made: concurrent.futures.Future[list[int]]) -> list[int]:
    """What came of it; nothing where it failed, as it does when the cell is gone."""
    return [] if made.cancelled() or made.exception() is not None else made.result()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
