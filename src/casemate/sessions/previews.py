"""Previews: servers of a session's programs, exposed on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument, NotFound, RecordUnavailable, Unavailable
from casemate.model.operation import caller
from casemate.model.preview import Preview
from casemate.policy.hosts import MOST_PORT

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.previews.exposed import ExposedServer
    from casemate.previews.gateway import PreviewGateway
    from casemate.sessions.cells import SessionCells
    from casemate.sessions.interpreter_cell import InterpreterCell
    from casemate.sessions.terms import Lifetime, SessionTerms

MOST_SECONDS = 30 * 86400.0  # lifetime of a link
_MOST = 20  # ports of one session
_ADDRESSES = ("127.0.0.1", "::1")  # development servers listen at either
_REFUSED = "without a valid link, or from a page of another origin"
_NOBODY = (errno.ECONNREFUSED, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH)  # the last without IPv6


class SessionPreviews:
    """The previews of one session. A connection counts as use of the session."""

    def __init__(self, terms: SessionTerms, cells: SessionCells, context: ExecutionContext, lifetime: Lifetime) -> None:
        self._session, self._namespace = terms.admitted.request.id, terms.namespace
        self._cells, self._context, self._lifetime = cells, context, lifetime
        self._open: dict[tuple[int, bool], ExposedServer] = {}  # by port, and whether at a Unix socket
        self._showing = asyncio.Lock()

    async def expose(self, port: int, seconds: float, *, unix: bool, third_parties: bool) -> Preview:
        """See :meth:`casemate.Session.expose`."""
        self._lifetime.check_open()
        _check("port", port, 1, MOST_PORT)
        _check("expires", seconds, 1, MOST_SECONDS)
        gateway = self._context.previews()
        interpreter = await self._cells.get_current()
        if interpreter is not None:
            await _check_reach(interpreter)
        async with self._showing:
            exposed = self._open.get((port, unix)) or await self._show(gateway, port, unix, third_parties)
        if exposed.preview.third_parties != third_parties:
            raise InvalidArgument("third_parties", f"port {port} is exposed with another value; unexpose it first")
        if unix:
            return exposed.preview
        linked = exposed.make_link(seconds)
        self._note({"action": "linked", "port": port, "preview": exposed.host, "seconds": seconds})
        return linked

    async def _show(self, gateway: PreviewGateway, port: int, unix: bool, third_parties: bool) -> ExposedServer:
        from casemate.previews.exposed import ExposedServer

        if len(self._open) >= _MOST:
            raise InvalidArgument("port", f"{_MOST} ports of this session are already exposed; unexpose one first")
        # The name makes a separate origin, so that cached or open pages without containment share none with others.
        host = f"{port}-{self._session}{'-open' if third_parties else ''}.localhost"

        def note_use() -> None:
            self._note_crossing(host, port, "allowed", "opened by its link")

        preview = Preview(self._session, port, "", "", None, third_parties)
        exposed = ExposedServer(preview, host, lambda: self._connect(port), note_use)
        self._note({"action": "exposed", "port": port, "preview": host, "unix": unix, "third_parties": third_parties})
        await (gateway.open_socket if unix else gateway.open_port)(exposed)
        self._open[port, unix] = exposed
        if self._lifetime.close_reason:  # closed meanwhile
            self.close()
            self._lifetime.check_open()
        return exposed

    def list(self) -> list[Preview]:
        """Return all previews, without links."""
        return [exposed.describe() for exposed in self._open.values()]

    def unexpose(self, port: int) -> None:
        """See :meth:`casemate.Session.unexpose`."""
        keys = [key for key in self._open if key[0] == port]
        if not keys:
            raise NotFound("port", f"port {port!r} of this session is not exposed")
        for key in keys:
            self._withdraw(key, "it was unexposed")

    def close(self) -> None:
        """Withdraw all previews."""
        for key in tuple(self._open):
            self._withdraw(key, "the session ended")

    def _withdraw(self, key: tuple[int, bool], why: str) -> None:
        exposed = self._open.pop(key)
        self._context.previews().withdraw(exposed)
        port, amounts = key[0], {"bytes_out": exposed.bytes_out, "bytes_in": exposed.bytes_in}
        if exposed.refusals:
            self._note_crossing(exposed.host, port, "denied", _REFUSED, requests=exposed.refusals)
        if exposed.requests:
            self._note_crossing(exposed.host, port, "allowed", why, requests=exposed.requests, **amounts)
        with contextlib.suppress(RecordUnavailable):
            self._note({"action": "unexposed", "port": port, "preview": exposed.host, "reason": why})

    def _note(self, detail: Mapping[str, object]) -> None:
        known = {name: value for name, value in {**detail, "caller": caller()}.items() if value}
        self._context.log.append("preview", self._session, self._namespace, known)

    def _note_crossing(self, host: str, port: int, decision: str, reason: str, **amounts: int) -> None:
        detail = {"kind": "preview", "preview": host, "port": port, "decision": decision, "reason": reason, **amounts}
        self._context.log.append_if_possible("crossing", self._session, self._namespace, detail)

    async def _connect(self, port: int) -> socket.socket:
        """Connect to a server in the cell from the cell's own loopback. Raises ``OSError``."""
        self._lifetime.restart_idle()
        interpreter = self._cells.current
        if interpreter is None or not interpreter.is_alive:
            raise OSError(errno.ESRCH, "the session's interpreter has ended; its next step starts another")
        for address in _ADDRESSES:
            one = None
            try:
                one = await interpreter.take_client_socket(address)
                await asyncio.get_running_loop().sock_connect(one, (address, port))
                return one
            except BaseException as error:
                if one is not None:
                    one.close()
                if not isinstance(error, OSError) or error.errno not in _NOBODY:
                    raise
        raise OSError(errno.ECONNREFUSED, "nothing listens at that port in the session")


async def _check_reach(interpreter: InterpreterCell) -> None:
    try:
        (await interpreter.take_client_socket(_ADDRESSES[0])).close()
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise Unavailable(f"the cell's servers cannot be reached: {error.strerror}") from None
        raise Unavailable(
            f"the {interpreter.report.wall} wall cannot expose servers of a cell: another server of this machine "
            "could answer instead, or the host cannot get the cell's sockets",
            remediation="Use the native wall; casemate doctor lists what it needs on this machine.",
        ) from None


def _check(argument: str, value: object, low: float, high: float) -> None:
    kinds = (int,) if argument == "port" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise InvalidArgument(argument, f"{value!r} is not a number from {low} to {high:.0f}")
