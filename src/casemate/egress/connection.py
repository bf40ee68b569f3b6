"""One connection out of a cell, once its name and port are known: approval, dialing, checks, transfer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol

from casemate.egress.accounting import EgressRefused, Spent, Unreachable
from casemate.egress.stream import StreamPump, TcpStream, readable
from casemate.egress.wire import MOST_HELLO, BadHello, Hello, looks_like_tls, read_hello
from casemate.policy.hosts import HTTP, HTTPS, LOCAL_NAME, NO_RULE, canonical, may_be_public

if TYPE_CHECKING:
    from casemate.egress.accounting import ConnectionTally, Ledger, TimeShare
    from casemate.egress.dial import Dialler
    from casemate.egress.terms import EgressTerms, HostService
    from casemate.model.approval import ApprovalVerdict

_MOST_PIECES = 256  # pieces of a head: with each new piece, the whole head is parsed again
_MOST_GRANTED = 64  # permitted hosts that one connection to the proxy remembers
_LONGEST_REASON = 200  # characters
_LAST_WORDS = 3.0  # seconds for a client to read the reason of a refusal
_MOST_UNREAD = 1 << 18  # bytes that are discarded meanwhile
_TLS_IS_HIDDEN = "rules restrict its requests, and TLS hides them unless it is intercepted"


class CellSide(Protocol):
    terms: EgressTerms
    ledger: Ledger
    dialler: Dialler
    time_share: TimeShare

    def buffer_share(self) -> memoryview:
        """Return the buffer for one move of a connection."""


class EgressConnection:
    """One connection. ``client`` is the cell's end."""

    def __init__(self, cell: CellSide, client: TcpStream) -> None:
        self.cell = cell
        self.client = client
        self.refuse: Callable[[EgressRefused], bytes] | None = None  # formats a refusal for the client, if possible
        self.touched = self.begun = asyncio.get_running_loop().time()
        self.waits_for_a_person = self.waits_for_the_host = False
        self._servers: list[TcpStream] = []
        self._tally: ConnectionTally | None = None
        self._granted: dict[tuple[str, int], str] = {}
        self._granted_under = cell.terms
        self._where = ("(none)", 0)

    @property
    def terms(self) -> EgressTerms:
        return self.cell.terms

    # -- may it connect

    async def permit(self, name: str, port: int) -> None:
        """Check that rules or an approver allow the canonical ``name`` at ``port``. Raises :class:`EgressRefused`."""
        if self._granted_under is not self.terms:
            self._granted_under, self._granted = self.terms, {}
        if (name, port) not in self._granted:
            reason = self._apply_rules(name, port) or await self._ask_approval(name, port)
            if len(self._granted) >= _MOST_GRANTED:
                self._granted.clear()
            self._granted[name, port] = reason

    def _apply_rules(self, name: str, port: int) -> str:
        """Return the reason if a rule allows it, or "" if it needs approval. Raises :class:`EgressRefused`."""
        hosts = self.terms.hosts
        if name == LOCAL_NAME:
            if port in hosts.local_ports:
                return "allow_local lists the port"
            raise EgressRefused(
                name, port, "allow_local does not list the port", f"To permit it: {port} as allow_local."
            )
        if hosts.denies(name, port):
            raise EgressRefused(name, port, "a rule denies it")
        if hosts.allows(name, port):
            return "a rule allows it"
        if self.terms.approvals is not None and may_be_public(name):
            return ""
        wanted = name if port in (HTTP, HTTPS) else f"{name}:{port}"
        raise EgressRefused(name, port, NO_RULE, f"To permit it: {wanted} as allowed_domains.")

    async def _ask_approval(self, name: str, port: int) -> str:
        approvals = self.terms.approvals
        assert approvals is not None
        answer = asyncio.wrap_future(approvals.decide(name, port, self.cell.ledger.count_question(name, port)))
        asked_at, self.waits_for_a_person = asyncio.get_running_loop().time(), True
        try:
            await asyncio.wait([answer])
            verdict = _verdict_in(answer)
        finally:
            answer.cancel()
            self.waits_for_a_person = False
            self.touch()
            self.begun += self.touched - asked_at
        if verdict.allow is not True:
            why = f": {verdict.reason[:_LONGEST_REASON]}" if verdict.reason else ""
            raise EgressRefused(name, port, f"it was asked for and not approved{why}")
        return f"it was asked for and approved by {verdict.by[:_LONGEST_REASON] or 'an approver'}"

    # -- connecting and moving bytes

    async def serve(self, service: HostService) -> None:
        """Let the host's ``service`` answer, without a time limit."""
        self.waits_for_the_host = True
        await service.serve(self.client)

    async def dial(self, name: str, port: int) -> TcpStream:
        """Connect to the server. Raises :class:`EgressRefused` and :class:`Unreachable`."""
        terms = self.terms
        made = await self.cell.dialler.dial(name, port, terms.limits, terms.hosts.networks(name, port))
        try:
            server = TcpStream(made)
        except BaseException:
            made.close()
            raise
        self._servers.append(server)
        self._where = (name, port)
        self._tally = self.cell.ledger.note(
            name, port, "allowed", self._granted.get((name, port), "a rule allows it"), is_reached=True
        )
        self.touch()
        return server

    def leave(self, server: TcpStream) -> None:
        """Close the connection to a server that is no longer needed."""
        server.close()
        self._servers.remove(server)

    async def tunnel(self, name: str, port: int, server: TcpStream, *, is_known: bool = False) -> None:
        """Carry bytes both ways. Unless ``is_known``, a ClientHello must name the server; port 443 needs one."""
        down: StreamPump | None = None
        up: StreamPump | None = None
        try:
            if not is_known and port != HTTPS:
                down = self.pump(server, self.client)
            if not is_known:
                await self._look(name, port)
            down = down or self.pump(server, self.client)
            up = self.pump(self.client, server)
            await _both(up, down)
        finally:
            for pump in (up, down):
                if pump is not None:
                    pump.stop()

    def pump(self, source: TcpStream, sink: TcpStream, most: int | None = None) -> StreamPump:
        """Return a pump that counts bytes, and ends the sink when the source has ended."""
        pump = StreamPump(
            source, sink, self.count_out if source is self.client else self.count_in, self.cell.buffer_share, most
        )

        def over(done: asyncio.Future[int]) -> None:
            if done.cancelled():
                return
            if done.exception() is not None:
                source.halt()
                sink.halt()
            elif most is None:
                sink.end()

        pump.done.add_done_callback(over)
        return pump

    async def starts_with_tls(self) -> bool:
        """Whether the client starts with a TLS handshake. False if it ends without sending anything."""
        while (is_tls := looks_like_tls(bytes(self.client.ahead[:2]))) is None:
            if not await self.client.fill():
                return False
        return is_tls

    async def _look(self, name: str, port: int) -> None:
        if port == HTTPS:
            async with asyncio.timeout(self.terms.limits.head_seconds):
                is_tls = await self.starts_with_tls()
        else:
            is_tls = await self.starts_with_tls()
        if is_tls:
            await self.check_hello(name, port)
        elif port == HTTPS and self.client.ahead:
            raise EgressRefused(name, port, "plain text where TLS is expected")

    async def check_hello(self, name: str, port: int, *, is_intercepted: bool = False) -> Hello:
        """Read a ClientHello into ``client.ahead`` and check that it names ``name``. Raises :class:`EgressRefused`."""
        if not is_intercepted and self.terms.requests.names(name, port):
            raise EgressRefused(name, port, _TLS_IS_HIDDEN)
        try:
            async with asyncio.timeout(self.terms.limits.head_seconds):
                hello = await self._hello()
        except BadHello as error:
            raise EgressRefused(name, port, f"its TLS ClientHello is not accepted: {error}") from None
        if hello.name is None:
            raise EgressRefused(name, port, "its TLS ClientHello has no server name")
        if canonical(hello.name) != name:
            raise EgressRefused(name, port, "its TLS ClientHello names another server")
        return hello

    async def _hello(self) -> Hello:
        for _ in range(_MOST_PIECES):
            hello = await self.cell.time_share.run(read_hello, bytes(self.client.ahead[: 2 * MOST_HELLO]))
            if hello is not None:
                return hello
            if len(self.client.ahead) >= 2 * MOST_HELLO or not await self.client.fill():
                break
        raise BadHello("it is cut off, too long, or in too many pieces")

    # -- counting and ending

    def touch(self) -> None:
        """Restart the idle time."""
        self.touched = asyncio.get_running_loop().time()

    def count_out(self, count: int) -> None:
        """Count bytes from the cell. Raises :class:`Spent`."""
        self.touch()
        if self._tally is not None:
            self._tally.bytes_out += count
        self.cell.ledger.spend(count, self.terms.limits.bytes)

    def count_in(self, count: int) -> None:
        """Count bytes to the cell. Raises :class:`Spent`."""
        self.touch()
        if self._tally is not None:
            self._tally.bytes_in += count
        self.cell.ledger.spend(count, self.terms.limits.bytes)

    def is_overdue(self, now: float) -> bool:
        """Whether it has been idle or open for too long, except during an approval request or a host service."""
        limits = self.terms.limits
        is_too_long = now - self.touched > limits.idle_seconds or now - self.begun > limits.seconds
        return is_too_long and not self.waits_for_a_person and not self.waits_for_the_host

    async def run(self, serve: Callable[[EgressConnection], Awaitable[None]]) -> None:
        """Serve the connection to its end. Reports and records a refusal, and closes everything."""
        try:
            await serve(self)
            self.client.close()
        except EgressRefused as refused:
            self.note_refused(refused)
            await self._say(refused)
        except Spent as spent:
            self.note_lost(str(spent))
        except (OSError, TimeoutError):
            pass  # either side left, or took too long
        except Exception as error:  # noqa: BLE001 - a fault of casemate ends only this connection
            self.note_lost(f"a fault of casemate: {type(error).__name__}")
        finally:
            self.client.abort()
            for server in self._servers:
                server.close()

    def note_lost(self, reason: str) -> None:
        """Record why an allowed connection is ended."""
        self.cell.ledger.note(*self._where, "denied", reason)

    def note_refused(self, refused: EgressRefused) -> None:
        """Record a refusal."""
        decision: Literal["allowed", "denied"] = "allowed" if isinstance(refused, Unreachable) else "denied"
        self.cell.ledger.note(refused.host, refused.port, decision, refused.reason)

    async def _say(self, refused: EgressRefused) -> None:
        if self.refuse is not None:
            with contextlib.suppress(OSError):
                await self.client.send(self.refuse(refused))
                await self.farewell()
                self.client.close()

    async def farewell(self) -> None:
        """Let the client read the answer: closing while it sends would reset the connection. Raises ``OSError``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                self.client.end()
                unread = 0
                while unread < _MOST_UNREAD and (count := await self.client.waste()):
                    unread += count


async def _both(*pumps: StreamPump) -> None:
    """Wait for both pumps, or for the first that fails, and raise its error."""
    done, _ = await asyncio.wait([pump.done for pump in pumps], return_when=asyncio.FIRST_EXCEPTION)
    for one in done:
        one.result()


async def something_from(*streams: TcpStream) -> None:
    """Wait until one of ``streams`` has unused or readable bytes."""
    while not any(stream.has_something() for stream in streams):
        await readable(*streams)


def _verdict_in(answer: asyncio.Future[ApprovalVerdict]) -> ApprovalVerdict:
    """Return the answer's verdict; a denial if it has none."""
    from casemate.model.approval import ApprovalVerdict

    said = None if answer.cancelled() or answer.exception() is not None else answer.result()
    return said if isinstance(said, ApprovalVerdict) else ApprovalVerdict(False, "")
