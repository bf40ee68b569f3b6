"""Authenticates requests, and ends them when their token stops being valid.

Any page can make a browser on the user's machine send requests. ``Origin`` names that page, and ``Host`` shows a name
that was rebound to this machine (DNS rebinding); both must be expected ones, with any credential.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from casemate.model.operation import Audience, Principal
from casemate.visible import is_plain

_LOCAL = frozenset({"localhost", "casemate"})
MOST_NAME = 100  # characters
PAGES = "/console"  # path of the console's pages
FRAME_SCRIPT = f"{PAGES}/frame.js"  # loaded by the frame that shows HTML, which has an opaque origin
CONSOLE = "casemate-console"  # header with a session's key; pages of another origin cannot send it
_SINGLE = frozenset({
    b"host", b"origin", b"authorization", b"cookie", b"casemate-as", b"casemate-namespace", b"content-length",
    CONSOLE.encode(),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listener:
    kind: Literal["unix", "tcp"]
    hosts: frozenset[str]  # allowed Host headers, with the port unless it is the scheme's default
    origins: frozenset[str] = frozenset()  # of pages that may send requests, as named by the operator
    scheme: Literal["http", "https"] = "http"  # "https" with TLS

    @property
    def own_origins(self) -> frozenset[str]:
        """Of the console's pages, which may authenticate with a console session only."""
        return frozenset(f"{self.scheme}://{host}" for host in self.hosts) if self.kind == "tcp" else frozenset()


UNIX = Listener("unix", _LOCAL)


class Refused(Exception):
    """Refuses a request with ``status``. ``allow``: the allowed methods, for 405 (RFC 9110, section 15.5.6)."""

    def __init__(self, status: int, message: str, remediation: str = "", *, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remediation = remediation
        self.allow = allow


Headers = Mapping[str, str]  # of a request, by name in lower case


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a request. Raises :class:`Refused` for a repeated header that could be read in two ways."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.lower()
        if key in _SINGLE and key.decode("latin-1") in found:
            raise Refused(400, f"the header {key.decode('latin-1')!r} is repeated")
        found[key.decode("latin-1")] = value.decode("latin-1")
    return found


def check_place(head: Headers, path: str, listener: Listener) -> None:
    """Check that the request is for this service and from an allowed page. Raises :class:`Refused`."""
    host = (head.get("host") or "").lower()
    if host not in listener.hosts:
        raise Refused(
            421,
            f"this service is not called {host[:100]!r}",
            "Use the address at which it listens, or name the host when you start it (--host-name).",
        )
    origin = head.get("origin")
    is_of_console = head.get(CONSOLE) is not None or path.startswith(f"{PAGES}/")
    expected = listener.origins | (listener.own_origins if is_of_console else frozenset())
    if origin is not None and origin.lower() not in expected and path != FRAME_SCRIPT:
        raise Refused(
            403, f"pages of {origin[:100]!r} may not use this service", "Name the page's origin when you start it."
        )


def user_of(head: Headers) -> Principal:
    """The principal over a Unix socket: the user. Raises :class:`Refused`."""
    namespace = _name_in(head, "casemate-namespace") or "default"
    return Principal("user", Audience.OPERATOR, namespace, may_approve=True, may_run_commands=True)


def token_of(head: Headers) -> str:
    """The request's bearer token; empty for none."""
    scheme, _, token = (head.get("authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def check_principal(head: Headers, principal: Principal | None) -> Principal:
    """The principal of a request over TCP; ``principal``: that of its token, if any. Raises :class:`Refused`."""
    if principal is None:
        raise Refused(
            401,
            "the token is unknown or has expired" if head.get("authorization") else "a token is needed",
            "Make one where the service runs (casemate service token add), and send it as Authorization: Bearer ...",
        )
    wanted = _name_in(head, "casemate-namespace")
    if wanted is not None and wanted != principal.namespace:
        raise Refused(403, f"this token is for the namespace {principal.namespace!r}, not {wanted!r}")
    return principal


def reduce_principal(head: Headers, principal: Principal) -> Principal:
    """``principal``, or the agent that ``Casemate-As`` names, which never adds rights. Raises :class:`Refused`."""
    wanted = head.get("casemate-as")
    if wanted is None:
        return principal
    kind, _, name = wanted.partition(":")
    may_approve = kind == "agent+approver"  # a surface that shows its agent's approval requests to a person
    name = unquote(name)
    if kind not in ("agent", "agent+approver") or not is_name(name):
        raise Refused(400, "Casemate-As is not agent:<name>")
    if principal.audience is Audience.AGENT:
        raise Refused(403, "an agent cannot be another")
    return principal._replace(
        name=f"agent:{name}", secrets=(), audience=Audience.AGENT, may_approve=may_approve and principal.may_approve,
        may_run_commands=may_approve and principal.may_run_commands,
    )  # fmt: skip


def _name_in(head: Headers, header: str) -> str | None:
    raw = head.get(header)
    if raw is None:
        return None
    name = unquote(raw)
    if not is_name(name):
        raise Refused(400, f"the header {header} is not a printable name of 1 to {MOST_NAME} characters")
    return name


def is_name(name: str) -> bool:
    """Whether a token, a namespace or an agent may have this name."""
    return 0 < len(name) <= MOST_NAME and is_plain(name)


def hosts_of(addresses: Iterable[tuple[str, int]], names: Iterable[str], *, tls: bool) -> frozenset[str]:
    """The allowed Host headers of a service that listens at ``addresses`` and is also called ``names``."""
    usual = 443 if tls else 80
    found: set[str] = set()
    for address, port in addresses:
        shown = f"[{address}]" if ":" in address else address
        is_any = address in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
        known = {"localhost", "127.0.0.1", "[::1]"} if is_any or address in ("127.0.0.1", "::1") else set()
        for name in {*([] if is_any else [shown]), *known, *(one.lower() for one in names)}:
            found.add(f"{name}:{port}")
            if port == usual:
                found.add(name)
    return frozenset(found)


_LOOK_EVERY = 0.25  # seconds between reads of the tokens file while requests are open
_log = logging.getLogger("casemate.service")
PrincipalsOf = Callable[[Collection[str]], Mapping[str, Principal]]


class Admitted:
    """``principals_of`` maps valid tokens to their principals, and leaves out all others."""

    def __init__(self, principals_of: PrincipalsOf) -> None:
        self._principals_of = principals_of
        self._open: dict[object, tuple[str, Principal, asyncio.Timeout]] = {}
        self._next: asyncio.TimerHandle | None = None
        self._has_failed = False  # the read before

    def principal_of(self, token: str) -> Principal | None:
        """The principal of this token, if it is valid now. Raises ``Unavailable``."""
        return self._principals_of([token]).get(token)

    @asynccontextmanager
    async def while_it_holds(self, token: str, principal: Principal) -> AsyncGenerator[None]:
        """Cancel the body with :class:`Refused` soon after ``token`` was removed, expired or got another principal."""
        own, held = object(), asyncio.timeout(None)
        try:
            async with held:
                self._open[own] = (token, principal, held)
                self._look_again()
                try:
                    yield
                finally:
                    del self._open[own]
        except TimeoutError:
            if not held.expired():
                raise
            raise Refused(
                401,
                "the token was removed, has expired or was changed, so its open requests were ended",
                "Ask the operator of the service for another (casemate service token add).",
            ) from None

    def _look_again(self) -> None:
        if self._next is None and self._open:
            self._next = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        """Check all open requests. After two failed reads in a row no token is valid; a single one may come from a
        concurrent write or a lack of descriptors."""
        self._next = None
        try:
            self._end_all_but(self._principals_of({token for token, _, _ in self._open.values()}))
            self._has_failed = False
        except Exception:  # noqa: BLE001 - after any error the checks go on, so that no request stays open unchecked
            _log.warning("tokens cannot be read", exc_info=True, extra={"event": "tokens"})
            if self._has_failed:
                self._end_all_but({})
            self._has_failed = True
        finally:
            self._look_again()

    def _end_all_but(self, known: Mapping[str, Principal]) -> None:
        for token, principal, held in self._open.values():
            if known.get(token) != principal and not held.expired():
                held.reschedule(0)
