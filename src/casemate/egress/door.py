"""The network door: the only way out of cells, in a thread of its own, so that an application that is busy does not
hold them up. When the thread dies, so does every socket: no door is no network."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable

from casemate.egress.descriptors import Descriptors
from casemate.egress.dial import Connect, Dialler, Resolve, SystemResolver, connect
from casemate.egress.opening import Opening
from casemate.egress.terms import (
    ADDRESS_RANGE,
    DNS,
    LOCAL_NAME,
    PROXY,
    Asker,
    CellNetwork,
    Crossing,
    DoorLimits,
    Service,
    Terms,
)
from casemate.errors import Fault, SandboxClosed

__all__ = [
    "ADDRESS_RANGE",
    "DNS",
    "LOCAL_NAME",
    "PROXY",
    "Asker",
    "CellNetwork",
    "Crossing",
    "Door",
    "DoorLimits",
    "Opening",
    "Service",
    "Terms",
]

_BUFFER = 1 << 18  # bytes that are moved at once; one buffer for all pumps, since they take turns
_START_SECONDS = 10.0
_END_SECONDS = 10.0


class Door:
    """One for each sandbox. It starts with the first cell that is opened, and ends with :meth:`close`.

    ``resolve`` gives the addresses of a name (IPv4, as texts; raises ``OSError``); None is the host's resolver.
    ``connect`` makes a connection to an address that was vetted. ``on_crossing`` is called in the door's thread with
    the opening and a :class:`Crossing`, once for each kind of crossing, when it happens first; it must neither block
    nor raise.
    """

    def __init__(
        self,
        resolve: Resolve | None = None,
        connect: Connect = connect,
    ) -> None:
        self._resolve = resolve
        self._connect = connect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrivals: asyncio.Queue[Opening | None] = asyncio.Queue()
        self._openings: set[Opening] = set()
        self._is_closed = False
        self._process = os.getpid()

    def open(
        self,
        terms: Terms,
        network: CellNetwork,
        dns_fd: int,
        proxy_fd: int,
        on_crossing: Callable[[Crossing], None] | None = None,
    ) -> Opening:
        """Serve one cell: answer names at the UDP socket ``dns_fd``, proxy requests at the listening TCP socket
        ``proxy_fd``. Both are taken over, also when this raises. From any thread. ``on_crossing`` is called in the
        door's thread once for each kind of crossing, when it happens first; it must neither block nor raise.

        Raises :class:`SandboxClosed` after :meth:`close`, :class:`Fault` where the door's thread is gone.
        """
        dns, proxy = socket.socket(fileno=dns_fd), socket.socket(fileno=proxy_fd)
        opening = Opening(terms, network, dns, proxy, on_crossing)
        try:
            with self._lock:
                loop = self._running()
                self._openings.add(opening)
                loop.call_soon_threadsafe(self._arrivals.put_nowait, opening)
        except (RuntimeError, Fault, SandboxClosed) as error:
            dns.close()
            proxy.close()
            if isinstance(error, RuntimeError):
                raise Fault("the network door's thread is gone") from error
            raise
        return opening

    def close(self) -> None:
        """End every connection of every cell, and the thread. Bounded; may be called again."""
        with self._lock:
            self._is_closed = True
            thread, loop = self._thread, self._loop
        if thread is None or loop is None or self._process != os.getpid():
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._arrivals.put_nowait, None)
        thread.join(_END_SECONDS)
        if thread.is_alive():
            raise Fault("the network door did not end")

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop of the thread, which is started if need be."""
        if self._is_closed or self._process != os.getpid():
            raise SandboxClosed("the network door is closed")
        if self._thread is None:
            has_started = threading.Event()
            self._thread = threading.Thread(target=self._main, args=(has_started,), name="casemate-door", daemon=True)
            self._thread.start()
            has_started.wait(_START_SECONDS)
        if self._loop is None or not self._thread.is_alive():
            raise Fault("the network door's thread is gone")
        return self._loop

    def _main(self, has_started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(has_started))
        finally:
            has_started.set()
            with self._lock:
                left, self._openings = self._openings, set()
            for opening in left:
                opening.abandon()

    def _forget(self, opening: Opening, _: object) -> None:
        self._openings.discard(opening)

    async def _serve(self, has_started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        has_started.set()
        buffer, descriptors = memoryview(bytearray(_BUFFER)), Descriptors()
        resolver = SystemResolver() if self._resolve is None else None
        resolve = resolver or self._resolve
        assert resolve is not None
        try:
            async with asyncio.TaskGroup() as group:
                while (opening := await self._arrivals.get()) is not None:
                    dialler = Dialler(resolve, self._connect, group)
                    group.create_task(opening.run(dialler, buffer, descriptors.share()))
                    opening.ended.add_done_callback(functools.partial(self._forget, opening))
                for opening in list(self._openings):
                    opening.close()
        finally:
            if resolver is not None:
                resolver.close()
