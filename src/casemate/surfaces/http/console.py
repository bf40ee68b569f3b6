"""The console's pages, and the sign-in of browsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.model.operation import Principal
from casemate.policy.hosts import MOST_PORT
from casemate.surfaces.http.identity import CONSOLE, PAGES, Refused
from casemate.surfaces.http.sign_in import SignIns, credential_in

if TYPE_CHECKING:
    from casemate.surfaces.http.exchange import Exchange

_SESSION = f"{PAGES}/session"
_MOST_BODY = 4096  # bytes
_PIECE = 16 * 1024  # bytes


class Console:
    """``open_loopback`` listens at a port of the loopback (0 for any), unless one is open, and returns the port."""

    def __init__(self, sign_ins: SignIns, open_loopback: Callable[[int], int]) -> None:
        self._sign_ins = sign_ins
        self._open_loopback = open_loopback

    def has_page(self, path: str) -> bool:
        """Whether ``path`` belongs to the console."""
        return path == PAGES or path.startswith(f"{PAGES}/")

    def make_link(self, principal: Principal, token: str, port: object) -> Mapping[str, Any]:
        """A link that signs in one browser as ``principal``, soon and once: ``path`` on the requested address; the
        user, who comes over a Unix socket, also gets ``url``. Raises ``InvalidArgument`` and ``Unavailable``."""
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MOST_PORT:
            raise InvalidArgument("port", f"{port!r} is not a port")
        url = None if token else f"http://127.0.0.1:{self._open_loopback(port)}"
        return {"url": url, "path": f"{PAGES}/#code={self._sign_ins.make_link(principal, token)}"}

    async def answer(self, exchange: Exchange) -> None:
        """Serve a page's file to anyone; begin a session for a code, or end one. Raises :class:`Refused`."""
        if exchange.path == _SESSION:
            await self._answer_session(exchange)
            return
        from casemate.surfaces.console.files import page_files

        if exchange.method != "GET":
            raise Refused(405, f"{PAGES} accepts GET", allow="GET")
        if exchange.path == PAGES:
            await exchange.answer(308, None, {"location": f"{PAGES.removeprefix('/')}/"})  # works behind a prefix
            return
        file = page_files().get(exchange.path.removeprefix(f"{PAGES}/"))
        if file is None:
            raise Refused(404, "the console has no such page")
        if exchange.head.get("if-none-match") == file.headers["etag"]:
            await exchange.begin(304, file.headers)
        else:
            await exchange.begin(200, {**file.headers, "content-length": str(len(file.content))})
            for start in range(0, len(file.content), _PIECE):  # bounds what is buffered for a slow client
                await exchange.more(file.content[start : start + _PIECE])
        await exchange.end()

    async def _answer_session(self, exchange: Exchange) -> None:
        if exchange.head.get(CONSOLE) is None or exchange.head.get("origin") is None:
            raise Refused(403, "only the console's own page can sign in")
        secure = "; Secure" if (exchange.head.get("origin") or "").startswith("https:") else ""
        cookie = f"{cookie_name(exchange.port)}={{}}; HttpOnly; SameSite=Strict; Path=/{secure}"
        if exchange.method == "DELETE":
            self._sign_ins.end(credential_of(exchange))
            await exchange.answer(200, {}, {"set-cookie": f"{cookie.format('')}; Max-Age=0"})
        elif exchange.method == "POST":
            value, key, principal = self._sign_ins.begin(_code_in(await exchange.body(_MOST_BODY)))
            told = {"name": principal.name, "namespace": principal.namespace, "may_approve": principal.may_approve}
            await exchange.answer(200, {"key": key, **told}, {"set-cookie": cookie.format(value)})
        else:
            raise Refused(405, f"{_SESSION} accepts POST and DELETE", allow="POST, DELETE")


def cookie_name(port: int) -> str:
    """The cookie's name for a service at ``port``: a host's cookies are shared by all its ports."""
    return f"casemate_{port}"


def credential_of(exchange: Exchange) -> str:
    """The session credential of a request, or "". Raises :class:`Refused` for a change without an Origin."""
    if exchange.method != "GET" and exchange.head.get("origin") is None:
        raise Refused(403, "a request of the console must name the page that sent it (Origin)")
    pairs = (part.strip().partition("=") for part in (exchange.head.get("cookie") or "").split(";"))
    cookies = (value for name, _, value in pairs if name == cookie_name(exchange.port))
    return credential_in(" ".join(cookies), exchange.head.get(CONSOLE) or "")


def _code_in(body: bytes) -> str:
    try:
        code = json.loads(body)["code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        code = None
    if not isinstance(code, str):
        raise Refused(400, 'the body is not {"code": "..."}')
    return code
