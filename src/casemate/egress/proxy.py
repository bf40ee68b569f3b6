"""The egress proxy: the only way out of cells. It runs in its own thread, so that a busy application delays no cell.

When the thread dies, its sockets close with it: without the proxy there is no network.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import os
import socket
import threading
from collections.abc import Awaitable, Callable

from casemate.egress.accepting import accept
from casemate.egress.accounting import DescriptorPool, DescriptorShare, Ledger, TimeShare
from casemate.egress.cell_addresses import CellAddresses
from casemate.egress.connection import EgressConnection
from casemate.egress.dial import Connect, Dialler, Resolve, SystemResolver, connect
from casemate.egress.resolver import Resolver
from casemate.egress.routing import by_name, by_proxy
from casemate.egress.stream import TcpStream, bound_buffers
from casemate.egress.terms import EgressTerms, Listen
from casemate.errors import Fault, SandboxClosed
from casemate.event_loop import run_in_loop
from casemate.model.execution import Crossing
from casemate.policy.hosts import LOCAL_NAME, NO_RULE, USUAL_PORTS, may_be_public

Serve = Callable[[EgressConnection], Awaitable[None]]
_MOST_ACCEPTED = 16  # connections accepted in one turn of the event loop
_LEAST_ROOM = 1 << 13  # bytes that a connection moves at once; fewer cost more than fairness gains
_LOOK_SECONDS = 1.0  # between two checks for overdue connections
_DESCRIPTORS = 2  # for one connection
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class CellProxy:
    """The egress proxy's side of one cell. ``change``, ``crossings`` and ``close`` may be called from any thread."""

    dialler: Dialler
    time_share: TimeShare

    def __init__(
        self,
        terms: EgressTerms,
        listen: Listen,
        dns: socket.socket,
        proxy: socket.socket,
        told: Callable[[Crossing], None] | None,
    ) -> None:
        self.terms = terms
        self.ledger = Ledger(told)
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._listen_inside, self._dns, self._proxy = listen, dns, proxy
        self._connections: dict[EgressConnection, asyncio.Task[None]] = {}
        self._serving: dict[socket.socket, Serve] = {}
        self._is_paused = False
        self._may_accept = _MOST_ACCEPTED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._is_closed = False

    def change(self, terms: EgressTerms) -> None:
        """Use ``terms`` for names, new connections and further requests in clear. Open tunnels stay."""
        self.terms = terms

    def crossings(self) -> tuple[Crossing, ...]:
        """Return what crossed or was denied so far. Distinct crossings are listed up to a bound."""
        return self.ledger.crossings()

    def close(self) -> concurrent.futures.Future[None]:
        """End every connection of this cell. The future is done when all sockets are closed. May be called again."""
        self._is_closed = True
        if self._loop is not None and self._closing is not None:
            with contextlib.suppress(RuntimeError):  # the egress proxy is gone, and has closed everything
                self._loop.call_soon_threadsafe(self._closing.set)
        return self.ended

    def abandon(self) -> None:
        """Close the cell's sockets after the egress proxy's thread has ended."""
        self._is_closed = True
        self._dns.close()
        self._proxy.close()
        if not self.ended.done():
            self.ended.set_result(None)

    # -- in the proxy's loop

    def buffer_share(self) -> memoryview:
        """Return the buffer for one move. It shrinks with more connections, so that other cells wait no longer."""
        return self._buffer[: max(_LEAST_ROOM, len(self._buffer) // max(1, len(self._connections)))]

    async def run(self, dialler: Dialler, buffer: memoryview, descriptors: DescriptorShare) -> None:
        """Serve the cell until it is closed. A failure ends this cell's network only."""
        self.dialler, self._buffer, self._descriptors = dialler, buffer, descriptors
        self.time_share = TimeShare()
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        if self._is_closed:
            self._closing.set()
        self._places = CellAddresses(self._listen_inside, descriptors, self._listen, self._ignore)
        resolver: Resolver | None = None
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                # Listen for the services ahead: their names are looked up soon.
                ahead = [group.create_task(self._reach(service.name)) for service in self.terms.services]
                sweeping = group.create_task(self._sweep())
                try:
                    resolver = Resolver(
                        self._dns, self._knows, self._reach, self._unknown, group, self.terms.limits.queries
                    )
                    self._serve_at(self._proxy, by_proxy)
                    await self._closing.wait()
                finally:
                    self._stop(resolver)  # nothing starts after this; the group still takes tasks
                for task in (sweeping, *ahead):
                    task.cancel()
                for task in self._connections.values():
                    task.cancel()
        except ExceptionGroup as failed:
            self.ledger.note("(egress proxy)", 0, "denied", f"a fault of casemate: {failed.exceptions[0]!r:.200}")
        finally:
            dialler.close()
            descriptors.end()
            self.ended.set_result(None)

    def _stop(self, resolver: Resolver | None) -> None:
        self._is_closed = True
        self._ignore(self._proxy)
        self._proxy.close()
        self._places.close()
        if resolver is not None:
            resolver.close()
        self._dns.close()

    # -- names

    def _knows(self, name: str) -> bool:
        return bool(_ports(self.terms, name))

    async def _reach(self, name: str) -> str | None:
        terms = self.terms
        return await self._places.reach(name, _ports(terms, name), terms.limits)

    def _unknown(self, name: str) -> None:
        is_denied = all(self.terms.hosts.denies(name, port) for port in USUAL_PORTS)
        why = "a rule denies it" if is_denied else NO_RULE
        self.ledger.note(name, 0, "denied", f"{why}: its name does not resolve")

    # -- connections

    def _listen(self, listener: socket.socket, name: str, port: int) -> None:
        self._serve_at(listener, lambda connection: by_name(connection, name, port))

    def _serve_at(self, listener: socket.socket, serve: Serve) -> None:
        listener.setblocking(False)
        bound_buffers(listener)
        self._serving[listener] = serve
        if not self._is_paused and self._loop is not None:
            self._loop.add_reader(listener, self._accept, listener)

    def _ignore(self, listener: socket.socket) -> None:
        if self._serving.pop(listener, None) is not None and self._loop is not None:
            self._loop.remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        if self._may_accept == _MOST_ACCEPTED:
            asyncio.get_running_loop().call_soon(self._accept_more)
        while self._may_accept:
            if len(self._connections) >= self.terms.limits.connections or not self._descriptors.take(_DESCRIPTORS):
                self._pause()
                return
            try:
                client = accept(listener)
            except EOFError:
                self._descriptors.give(_DESCRIPTORS)
                self._ignore(listener)
                return
            except OSError as error:
                self._descriptors.give(_DESCRIPTORS)
                if error.errno in _FULL:
                    self._pause()
                return
            self._may_accept -= 1
            self._begin(client, self._serving[listener])

    def _accept_more(self) -> None:
        self._may_accept = _MOST_ACCEPTED

    def _begin(self, client: socket.socket, serve: Serve) -> None:
        connection = EgressConnection(self, TcpStream(client))
        task = self._group.create_task(connection.run(serve))
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._over(connection))

    def _over(self, connection: EgressConnection) -> None:
        connection.client.abort()  # `run` does not close it if cancelled before it starts
        del self._connections[connection]
        self._descriptors.give(_DESCRIPTORS)
        self._resume()

    def _pause(self) -> None:
        """Stop accepting. New connections wait in the kernel's queue."""
        self._is_paused = True
        for listener in self._serving:
            asyncio.get_running_loop().remove_reader(listener)

    def _resume(self) -> None:
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            for listener in self._serving:
                asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for connection, task in self._connections.items():
                if connection.is_overdue(now):
                    connection.note_lost("it was idle, or open, for too long")
                    task.cancel()
            self._resume()


def _ports(terms: EgressTerms, name: str) -> tuple[int, ...]:
    """Return the ports to listen on for the canonical ``name``: those allowed, and those that approval may allow."""
    if name == LOCAL_NAME:
        return terms.hosts.local_ports
    if served := tuple(service.port for service in terms.services if service.name == name):
        return served
    ports = set(terms.hosts.ports(name))
    if terms.approvals is not None and may_be_public(name):
        ports.update(port for port in USUAL_PORTS if not terms.hosts.denies(name, port))
    return tuple(sorted(ports))


_BUFFER = 1 << 18  # bytes moved at once; all pumps take turns with one buffer
_START_SECONDS = 10.0
_END_SECONDS = 10.0


class EgressProxy:
    """The egress proxy of one sandbox. It starts with the first cell and ends with :meth:`close`. ``resolve`` returns a
    name's IPv4 addresses or raises ``OSError``; None uses the host's resolver. ``connect`` connects to one."""

    def __init__(self, resolve: Resolve | None = None, connect: Connect = connect) -> None:
        self._resolve = resolve
        self._connect = connect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrivals: asyncio.Queue[CellProxy | None] = asyncio.Queue()
        self._cell_proxies: set[CellProxy] = set()
        self._is_closed = False
        self._process = os.getpid()

    def open(
        self,
        terms: EgressTerms,
        listen: Listen,
        dns_fd: int,
        proxy_fd: int,
        on_crossing: Callable[[Crossing], None] | None = None,
    ) -> CellProxy:
        """Serve one cell. Callable from any thread.

        Answers names at the UDP socket ``dns_fd`` and proxy requests at the listening TCP socket ``proxy_fd``; either
        may be a socket pair, see `accepting`. Takes over both descriptors, even if this raises. Calls ``on_crossing``
        in the proxy's thread for the first crossing of each kind; it must neither block nor raise.

        Raises :class:`SandboxClosed` after :meth:`close`, and :class:`Fault` if the egress proxy's thread has ended.
        """
        dns, proxy = socket.socket(fileno=dns_fd), socket.socket(fileno=proxy_fd)
        cell_proxy = CellProxy(terms, listen, dns, proxy, on_crossing)
        try:
            with self._lock:
                loop = self._start_thread()
                self._cell_proxies.add(cell_proxy)
                loop.call_soon_threadsafe(self._arrivals.put_nowait, cell_proxy)
        except (RuntimeError, Fault, SandboxClosed) as error:
            dns.close()
            proxy.close()
            if isinstance(error, RuntimeError):
                raise Fault("the egress proxy's thread is gone") from error
            raise
        return cell_proxy

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
            raise Fault("the egress proxy did not end")

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        if self._is_closed or self._process != os.getpid():
            raise SandboxClosed("the egress proxy is closed")
        if self._thread is None:
            has_started = threading.Event()
            self._thread = threading.Thread(target=self._main, args=(has_started,), name="casemate-egress", daemon=True)
            self._thread.start()
            has_started.wait(_START_SECONDS)
        if self._loop is None or not self._thread.is_alive():
            raise Fault("the egress proxy's thread is gone")
        return self._loop

    def _main(self, has_started: threading.Event) -> None:
        try:
            run_in_loop(self._serve(has_started))
        finally:
            has_started.set()
            with self._lock:
                left, self._cell_proxies = self._cell_proxies, set()
            for cell_proxy in left:
                cell_proxy.abandon()

    def _forget(self, cell_proxy: CellProxy, _: object) -> None:
        self._cell_proxies.discard(cell_proxy)

    async def _serve(self, has_started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        has_started.set()
        buffer, descriptors = memoryview(bytearray(_BUFFER)), DescriptorPool()
        resolver = SystemResolver() if self._resolve is None else None
        resolve = resolver or self._resolve
        assert resolve is not None
        try:
            async with asyncio.TaskGroup() as group:
                while (cell_proxy := await self._arrivals.get()) is not None:
                    dialler = Dialler(resolve, self._connect, group)
                    group.create_task(cell_proxy.run(dialler, buffer, descriptors.share()))
                    cell_proxy.ended.add_done_callback(functools.partial(self._forget, cell_proxy))
                for cell_proxy in list(self._cell_proxies):
                    cell_proxy.close()
        finally:
            if resolver is not None:
                resolver.close()
