"""Resolves a name on the host, vets its addresses, and dials exactly a vetted address.

So DNS rebinding cannot redirect a connection. It dials public IPv4 unicast addresses, and private networks that a rule
names, but none of the host's own addresses.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from casemate.egress.accounting import EgressRefused, Unreachable
from casemate.egress.stream import bound_buffers
from casemate.egress.terms import ProxyLimits
from casemate.model.addresses import why_refused
from casemate.policy.hosts import LOCAL_NAME

if TYPE_CHECKING:
    from ipaddress import IPv4Network

NOBODYS = "192.0.2.1"  # reserved for documentation (RFC 5737), so no interface has it


def is_own(address: str) -> bool:
    """Whether ``address`` belongs to this host: only then can a socket be bound to it. With
    ``net.ipv4.ip_nonlocal_bind``, sockets can be bound to any address, so every address counts as its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


Resolve = Callable[[str], Awaitable[list[str]]]
Connect = Callable[[str, int], Awaitable[socket.socket]]
_RESOLVERS = 64  # threads, started on demand; an unresponsive DNS server can block one
_MOST_LOOKED_UP = 4  # lookups at once for one cell, so that it cannot block other cells
_MOST_ADDRESSES = 4  # addresses tried for one name
_NAMED = "Private addresses are dialled if a rule of the policy names them for this host."
_LOOPBACK = "127.0.0.1"
_HOSTS_FILE, _MOST_HOSTS_FILE = "/etc/hosts", 4 << 20  # characters


class SystemResolver:
    """Looks up IPv4 addresses in the host's table and name servers. Names are absolute: search lists do not apply."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVERS, "casemate-resolver")

    async def __call__(self, name: str) -> list[str]:
        """Return the addresses of ``name``. Raises ``OSError``."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _addresses, name)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Stop looking up. A thread that waits for an answer ends with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _addresses(name: str) -> list[str]:
    if listed := _in_hosts_file(name):
        return listed
    found = socket.getaddrinfo(f"{name}.", None, socket.AF_INET, socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _in_hosts_file(name: str) -> list[str]:
    """Return the IPv4 addresses of ``name`` in the host's table (hosts(5)), which takes precedence."""
    try:
        with open(_HOSTS_FILE, encoding="utf-8", errors="replace") as file:
            rows = [line.partition("#")[0].split() for line in file.read(_MOST_HOSTS_FILE).splitlines()]
    except OSError:
        return []
    return [row[0] for row in rows if name in map(str.lower, row[1:]) and _is_ipv4(row[0])]


def _is_ipv4(text: str) -> bool:
    try:
        return bool(socket.inet_pton(socket.AF_INET, text))
    except OSError:
        return False


async def connect(address: str, port: int) -> socket.socket:
    """Connect to the IPv4 ``address`` by TCP. Raises ``OSError``."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    bound_buffers(made)
    try:
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return made


class Dialler:
    """Dials for one cell. ``connect`` gets only vetted addresses, always. ``group`` has the lookups."""

    def __init__(self, resolve: Resolve, connect: Connect, group: asyncio.TaskGroup) -> None:
        self._resolve = resolve
        self._connect = connect
        self._group = group
        self._turns = asyncio.Semaphore(_MOST_LOOKED_UP)
        self._lookups: set[asyncio.Task[list[str] | Exception]] = set()

    def close(self) -> None:
        """Cancel all lookups."""
        for lookup in self._lookups:
            lookup.cancel()

    async def dial(
        self, name: str, port: int, limits: ProxyLimits, only: tuple[IPv4Network, ...] = ()
    ) -> socket.socket:
        """Connect to ``name``. ``only`` restricts private addresses to these networks. Raises :class:`EgressRefused` if
        none of its addresses may be dialled, :class:`Unreachable` if none answers."""
        addresses = [_LOOPBACK] if name == LOCAL_NAME else await self._vet(name, port, limits, only)
        problem = "no time was left"
        for address in addresses[:_MOST_ADDRESSES]:
            try:
                async with asyncio.timeout(limits.connect_seconds):
                    return await self._connect(address, port)
            except TimeoutError:
                problem = "it does not answer"
            except OSError as error:
                problem = (os.strerror(error.errno) if error.errno else type(error).__name__).lower()
                if name == LOCAL_NAME and error.errno == errno.ECONNREFUSED:
                    problem = f"nothing listens on {_LOOPBACK}:{port} of the host"
        raise Unreachable(name, port, problem)

    async def _vet(self, name: str, port: int, limits: ProxyLimits, only: tuple[IPv4Network, ...]) -> list[str]:
        try:
            async with asyncio.timeout(limits.resolve_seconds):
                found = await self._looked_up(name)
        except TimeoutError:
            raise Unreachable(name, port, "its name does not resolve in time") from None
        if found is None:
            raise Unreachable(name, port, "its name does not resolve")
        reasons = {address: _why_not(address, only) for address in found}
        good = [address for address, reason in reasons.items() if reason is None]
        if found and not good:
            kinds = ", ".join(sorted({reason for reason in reasons.values() if reason}))
            raise EgressRefused(name, port, f"it resolves to addresses that are not dialled ({kinds})", _NAMED)
        if not good:
            raise Unreachable(name, port, "its name has no IPv4 address")
        return good

    async def _looked_up(self, name: str) -> list[str] | None:
        """Return the addresses of ``name``, None if it does not resolve. Cancelling the caller does not stop the
        lookup, which keeps one of the cell's `_MOST_LOOKED_UP` places until it is done."""
        await self._turns.acquire()
        lookup = self._group.create_task(self._lookup(name))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._is_done)
        await asyncio.wait([lookup])
        found = lookup.result()
        if isinstance(found, OSError | UnicodeError):
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def _is_done(self, lookup: asyncio.Task[list[str] | Exception]) -> None:
        self._lookups.discard(lookup)
        self._turns.release()

    async def _lookup(self, name: str) -> list[str] | Exception:
        """Return the error instead of raising it: an exception would end every cell's egress proxy."""
        try:
            return await self._resolve(name)
        except Exception as error:  # noqa: BLE001 - the waiter raises it
            return error


def _why_not(address: str, only: tuple[IPv4Network, ...]) -> str | None:
    reason = why_refused(address, only)
    if reason is None and is_own(address):
        unknown = "the host's own cannot be identified while net.ipv4.ip_nonlocal_bind is on"
        return unknown if is_own(NOBODYS) else "the host's own"
    return reason
