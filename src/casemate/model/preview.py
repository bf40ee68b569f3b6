"""A server in a session's cell that is shown outside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preview:
    """A server in a session's cell that is shown on this machine.

    Attributes:
        session: The session's id.
        port: The server's port in the cell.
        url: Opens it in a browser. From :meth:`casemate.Session.expose` it is a link: its holder has access until
            ``expires``. Empty over a Unix socket.
        socket: The path of its Unix socket, which only this user can use; empty if there is a URL.
        expires: When its last link ends, in seconds since 1970; None if it lasts as long as the session.
        third_parties: Whether its pages may load from other hosts, and send to them, with the viewer's browser.
    """

    session: str
    port: int
    url: str
    socket: str
    expires: float | None
    third_parties: bool = False

    def __str__(self) -> str:
        return self.url or self.socket

    def __repr__(self) -> str:  # a link is a secret, and this may be logged
        where = self.socket or self.url.partition("?")[0]
        return f"<Preview of port {self.port} in session {self.session}: {where}>"
