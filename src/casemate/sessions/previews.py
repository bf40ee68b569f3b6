"""Servers of a session's programs, shown on this machine."""

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

MOST_SECONDS = 30 * 86400.0  # that a link holds
_MOST = 20  # ports of one session
_ADDRESSES = ("127.0.0.1", "::1")  # servers for people listen at either
_REFUSED = "without a link that holds, or not by a page of its own"
_NOBODY = (errno.ECONNREFUSED, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH)  # the last of no IPv6


class SessionPreviews:
    """What of one session is shown; each connection says that somebody uses it."""

    def __init__(self, terms: SessionTerms, cells: SessionCells, context: ExecutionContext, lifetime: Lifetime) -> None:
        self._session, self._namespace = terms.admitted.request.id, terms.namespace
        self._cells, self._context, self._lifetime = cells, context, lifetime
        self._open: dict[tuple[int, bool], ExposedServer] = {}  # by port, and whether at a Unix socket
        self._showing = asyncio.Lock()

    async def expose(self, port: int, seconds: float, *, unix: bool, third_parties: bool) -> Preview:
        """As of :meth:`casemate.Session.expose`."""
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
            raise InvalidArgument("third_parties", f"port {port} is shown otherwise already; take it back first")
        if unix:
            return exposed.preview
        linked = exposed.make_link(seconds)
        self._note({"action": "linked", "port": port, "preview": exposed.host, "seconds": seconds})
        return linked

    async def _show(self, gateway: PreviewGateway, port: int, unix: bool, third_parties: bool) -> ExposedServer:
        from casemate.previews.exposed import ExposedServer

        if len(self._open) >= _MOST:
            raise InvalidArgument("port", f"{_MOST} ports of this session are shown already; take one back")
        # An origin of its own, so that pages that were not contained, in caches or tabs, are none of one that is.
        host = f"{port}-{self._session}{'-open' if third_parties else ''}.localhost"

        def note_use() -> None:
            self._note_crossing(host, port, "allowed", "opened by its link")

        preview = Preview(self._session, port, "", "", None, third_parties)
        exposed = ExposedServer(preview, host, lambda: self._connect(port), note_use)
        self._note({"action": "exposed", "port": port, "preview": host, "unix": unix, "third_parties": third_parties})
        await (gateway.open_socket if unix else gateway.open_port)(exposed)
        self._open[port, unix] = exposed
        if self._lifetime.close_reason:  # meanwhile
            self.close()
            self._lifetime.check_open()
        return exposed

    def list(self) -> list[Preview]:
        """All that are shown, without links."""
        return [exposed.describe() for exposed in self._open.values()]

    def unexpose(self, port: int) -> None:
        """As of :meth:`casemate.Session.unexpose`."""
        keys = [key for key in self._open if key[0] == port]
        if not keys:
            raise NotFound("port", f"port {port!r} of this session is not shown")
        for key in keys:
            self._withdraw(key, "it was taken back")

    def close(self) -> None:
        """The session is over. Harmless when repeated."""
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
        """Put on record who does what. Raises ``RecordUnavailable``."""
        known = {name: value for name, value in {**detail, "caller": caller()}.items() if value}
        self._context.log.append("preview", self._session, self._namespace, known)

    def _note_crossing(self, host: str, port: int, decision: str, reason: str, **amounts: int) -> None:
        detail = {"kind": "preview", "preview": host, "port": port, "decision": decision, "reason": reason, **amounts}
        self._context.log.append_if_possible("crossing", self._session, self._namespace, detail)

    async def _connect(self, port: int) -> socket.socket:
        """A connection to a server in the cell, from its own loopback. Raises ``OSError``."""
        self._lifetime.restart_idle()
        interpreter = self._cells.current
        if interpreter is None or not interpreter.is_alive:
            raise OSError(errno.ESRCH, "the session's interpreter has ended, and its next step begins another")
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
    """Raises ``Unavailable`` where this cell's servers cannot be reached."""
    try:
        (await interpreter.take_client_socket(_ADDRESSES[0])).close()
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise Unavailable(f"the cell's servers cannot be reached: {error.strerror}") from None
        raise Unavailable(
            f"the {interpreter.report.wall} wall cannot show servers of a cell: another server of this machine "
            "could answer in its place, or the cell's sockets cannot be had outside",
            remediation="Use the native wall: casemate doctor says what this machine lacks for it.",
        ) from None


def _check(argument: str, value: object, low: float, high: float) -> None:
    kinds = (int,) if argument == "port" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise InvalidArgument(argument, f"{value!r} is not a number from {low} to {high:.0f}")
