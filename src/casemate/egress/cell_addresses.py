"""The addresses of names in one cell's network: one per name for the cell's life, with listeners as needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from casemate.egress.accounting import DescriptorShare
from casemate.egress.terms import ADDRESS_RANGE, Listen, ProxyLimits

_RESERVED = 256  # addresses at the start of the range that belong to the proxy
_LISTEN_SECONDS = 5.0
_MOST_UNDER_WAY = 4  # the supervisor, which all cells share, forks to listen in a cell
_BURST, _OFTEN = 32, 10.0  # listen requests at once, and then per second
_MOST_WAITING = 64  # DNS queries that wait for a listener
_FAILED_SECONDS = 3.0  # a name gets no address for this long after listening failed


@dataclass(slots=True, eq=False)
class NameAddress:
    name: str
    address: str
    listeners: dict[int, socket.socket] = field(default_factory=dict)  # by port
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held to add listeners
    failed: float = 0.0  # when to try again, by the loop's clock


class CellAddresses:
    """The addresses of one cell. ``begin`` gets each new listener, its name and port; ``end`` a closing one."""

    def __init__(
        self,
        listen: Listen,
        descriptors: DescriptorShare,
        begin: Callable[[socket.socket, str, int], None],
        end: Callable[[socket.socket], None],
    ) -> None:
        self._listen_inside, self._descriptors, self._begin, self._end = listen, descriptors, begin, end
        self._by_name: dict[str, NameAddress] = {}  # least recently used first
        self._range = ipaddress.IPv4Network(ADDRESS_RANGE)
        self._is_closed = False
        self._held = 0  # listeners that are open or being opened
        self._waiting = 0
        self._under_way = asyncio.Semaphore(_MOST_UNDER_WAY)
        self._rate_lock = asyncio.Lock()
        self._credit, self._seen = float(_BURST), asyncio.get_running_loop().time()  # of the rate limit

    async def reach(self, name: str, ports: tuple[int, ...], limits: ProxyLimits) -> str | None:
        """Return the address of ``name`` once the proxy listens there at ``ports``. Returns None if that is impossible:
        too many names, descriptors or queries, a port in use, or a cell that has ended."""
        place = self._place(name, limits)
        if place is None:
            return None
        if all(port in place.listeners for port in ports):
            return place.address
        if self._waiting >= _MOST_WAITING or asyncio.get_running_loop().time() < place.failed:
            return None
        self._waiting += 1
        try:
            async with place.lock:
                missing = [port for port in ports if port not in place.listeners]
                if missing and not await self._listen(place, missing, limits):
                    return None
        finally:
            self._waiting -= 1
        return place.address

    def close(self) -> None:
        """Close every listener and open no more."""
        self._is_closed = True
        for place in self._by_name.values():
            self._close(place)

    def _place(self, name: str, limits: ProxyLimits) -> NameAddress | None:
        place = self._by_name.pop(name, None)
        if place is None:
            if len(self._by_name) >= min(limits.names, self._range.num_addresses - _RESERVED - 1):
                return None
            place = NameAddress(name, str(self._range[_RESERVED + len(self._by_name)]))
        self._by_name[name] = place
        return place

    async def _listen(self, place: NameAddress, ports: list[int], limits: ProxyLimits) -> bool:
        loop = asyncio.get_running_loop()
        if loop.time() < place.failed:
            return False
        await self._under_way.acquire()
        goes_on = False
        try:
            goes_on = await self._may_listen(place, len(ports), limits)
        finally:
            if not goes_on:
                self._under_way.release()
        if not goes_on:
            return False
        waiter: asyncio.Future[None] = loop.create_future()

        def take_listeners(made: concurrent.futures.Future[list[int]]) -> None:
            """Runs in any thread."""
            fds = _result(made)
            try:
                loop.call_soon_threadsafe(self._take, place, ports, fds, waiter)
            except RuntimeError:  # the egress proxy is gone
                _close_all(fds)

        self._ask([(place.address, port) for port in ports]).add_done_callback(take_listeners)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_SECONDS):
                await waiter
        if any(port not in place.listeners for port in ports):
            place.failed = loop.time() + _FAILED_SECONDS
            return False
        return True

    def _ask(self, addresses: list[tuple[str, int]]) -> concurrent.futures.Future[list[int]]:
        try:
            return self._listen_inside(addresses)
        except Exception as error:  # noqa: BLE001 - a broken cell network must not end the egress proxy
            failed: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
            failed.set_exception(error)
            return failed

    async def _may_listen(self, place: NameAddress, count: int, limits: ProxyLimits) -> bool:
        """Wait for the rate limit, then reserve room for ``count`` more listeners. Returns whether there is room."""
        async with self._rate_lock:
            now = asyncio.get_running_loop().time()
            self._credit = min(_BURST, self._credit + (now - self._seen) * _OFTEN) - 1
            self._seen = now
            if self._credit < 0:
                await asyncio.sleep(-self._credit / _OFTEN)
        most = min(limits.listeners, self._descriptors.most // 2)  # connections get the rest
        self._make_room(place, count, most)
        if self._is_closed or self._held + count > most or not self._descriptors.take(count):
            return False
        self._held += count
        return True

    def _take(self, place: NameAddress, ports: list[int], fds: list[int], waiter: asyncio.Future[None]) -> None:
        """Keep the new listeners, or close them all if they cannot be used. The waiter may have left."""
        self._under_way.release()
        if self._is_closed or len(fds) != len(ports) or any(port in place.listeners for port in ports):
            _close_all(fds)
            self._give(len(ports))
        else:
            for port, fd in zip(ports, fds, strict=True):
                listener = socket.socket(fileno=fd)
                listener.setblocking(False)
                place.listeners[port] = listener
                self._begin(listener, place.name, port)
        if not waiter.done():
            waiter.set_result(None)

    def _make_room(self, for_place: NameAddress, count: int, most: int) -> None:
        """Close listeners of the least recently used names. They reopen at the same address when needed."""
        for place in list(self._by_name.values()):
            if self._held + count <= most:
                return
            if place is not for_place and not place.lock.locked():
                self._close(place)

    def _close(self, place: NameAddress) -> None:
        for listener in place.listeners.values():
            self._end(listener)
            listener.close()
            self._give(1)
        place.listeners.clear()

    def _give(self, count: int) -> None:
        self._held -= count
        self._descriptors.give(count)


def _result(made: concurrent.futures.Future[list[int]]) -> list[int]:
    """Return the descriptors; none if listening failed, as it does once the cell has ended."""
    return [] if made.cancelled() or made.exception() is not None else made.result()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
