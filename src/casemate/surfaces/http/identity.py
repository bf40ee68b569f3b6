"""Who sends a request, whether it may come at all, and for how long its token lets it in.

A browser on the user's machine may be made to send requests by any page. It always says so with ``Origin``, and of a
name that was bound anew to this machine (DNS rebinding) with ``Host``; both must be expected ones, whoever asks.
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
_MOST_NAME = 100  # characters
PAGES = "/console"  # where the console's pages are
FRAME_SCRIPT = f"{PAGES}/frame.js"  # in the frame that shows HTML, which has no origin
CONSOLE = "casemate-console"  # a header that pages of another origin cannot send, with the key of a session
_SINGLE = frozenset({
    b"host", b"origin", b"authorization", b"cookie", b"casemate-as", b"casemate-namespace", b"content-length",
    CONSOLE.encode(),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a request came in. ``hosts``: what it may name as its host, with the port where that is not the usual;
    ``origins``: of pages that may ask, none unless the operator says so. ``scheme``: "https" with TLS."""

    kind: Literal["unix", "tcp"]
    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    scheme: Literal["http", "https"] = "http"

    @property
    def own_origins(self) -> frozenset[str]:
        """Of the service's own pages, the console's: they may ask with a session, and with nothing else."""
        return frozenset(f"{self.scheme}://{host}" for host in self.hosts) if self.kind == "tcp" else frozenset()


UNIX = Listener("unix", _LOCAL)


class Refused(Exception):
    """It may not come; ``status`` and why. ``allow``: the method that may, of 405 (RFC 9110, section 15.5.6)."""

    def __init__(self, status: int, message: str, remediation: str = "", *, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remediation = remediation
        self.allow = allow


@dataclass(frozen=True, slots=True)
class Headers:
    """A request's head, of which each name that matters is there once. ``headers``: by name in lower case."""

    headers: dict[str, str]

    def get(self, name: str) -> str | None:
        """The value of a header."""
        return self.headers.get(name)


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a request. Raises :class:`Refused` for one that is there twice, and could be read in two ways."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.lower()
        if key in _SINGLE and key.decode("latin-1") in found:
            raise Refused(400, f"the header {key.decode('latin-1')!r} is there twice")
        found[key.decode("latin-1")] = value.decode("latin-1")
    return Headers(found)


def check_place(head: Headers, path: str, listener: Listener) -> None:
    """Whether it was meant for this service and comes from no strange page. Raises :class:`Refused`."""
    host = (head.get("host") or "").lower()
    if host not in listener.hosts:
        raise Refused(
            421,
            f"this service is not called {host[:100]!r}",
            "Ask for it by the address at which it listens, or name the host when it is started (--host-name).",
        )
    origin = head.get("origin")
    is_of_console = head.get(CONSOLE) is not None or path.startswith(f"{PAGES}/")
    expected = listener.origins | (listener.own_origins if is_of_console else frozenset())
    if origin is not None and origin.lower() not in expected and path != FRAME_SCRIPT:
        raise Refused(
            403, f"pages of {origin[:100]!r} may not use this service", "Name the page's origin when it is started."
        )


def user_of(head: Headers) -> Principal:
    """Who sends it over a Unix socket: the user. Raises :class:`Refused`."""
    namespace = _name_in(head, "casemate-namespace") or "default"
    return Principal("user", Audience.OPERATOR, namespace, may_approve=True, may_run_commands=True)


def token_of(head: Headers) -> str:
    """The token that it comes with; empty for none."""
    scheme, _, token = (head.get("authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def check_principal(head: Headers, principal: Principal | None) -> Principal:
    """Who sends it over TCP: ``principal``, who comes with its token, where there is one. Raises :class:`Refused`."""
    if principal is None:
        raise Refused(
            401,
            "the token is unknown or has expired" if head.get("authorization") else "a token is needed",
            "Make one where the service runs (casemate service token add), and send it as Authorization: Bearer ...",
        )
    wanted = _name_in(head, "casemate-namespace")
    if wanted is not None and wanted != principal.namespace:
        raise Refused(403, f"this token is of the namespace {principal.namespace!r}, not of {wanted!r}")
    return principal


def reduce_principal(head: Headers, principal: Principal) -> Principal:
    """``principal``, or the agent for whom it asks: ``Casemate-As`` only ever lowers. Raises :class:`Refused`."""
    wanted = head.get("casemate-as")
    if wanted is None:
        return principal
    kind, _, name = wanted.partition(":")
    may_approve = kind == "agent+approver"  # a surface that shows a person what its agent asks for
    name = unquote(name)
    if kind not in ("agent", "agent+approver") or not _is_name(name):
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
    if not _is_name(name):
        raise Refused(400, f"the header {header} holds no printable name of 1 to {_MOST_NAME} characters")
    return name


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MOST_NAME and is_plain(name)


def hosts_of(addresses: Iterable[tuple[str, int]], names: Iterable[str], *, tls: bool) -> frozenset[str]:
    """What a request may name as its host for a service that listens at ``addresses``, and is also called ``names``."""
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


_LOOK_EVERY = 0.25  # seconds, while anybody is being answered: one look at the file, whatever their number
_log = logging.getLogger("casemate.service")
PrincipalsOf = Callable[[Collection[str]], Mapping[str, Principal]]


class Admitted:
    """``principals_of`` gives for each of some tokens who comes with it, nothing for one that lets in nobody."""

    def __init__(self, principals_of: PrincipalsOf) -> None:
        self._principals_of = principals_of
        self._open: dict[object, tuple[str, Principal, asyncio.Timeout]] = {}
        self._next: asyncio.TimerHandle | None = None
        self._has_failed = False  # the look before

    def principal_of(self, token: str) -> Principal | None:
        """Who comes with this token now. Raises ``Unavailable``."""
        return self._principals_of([token]).get(token)

    @asynccontextmanager
    async def while_it_holds(self, token: str, principal: Principal) -> AsyncGenerator[None]:
        """What is done within is cancelled soon after ``token`` was removed, has expired, or lets in another than
        ``principal``. Raises :class:`Refused` then."""
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
                "the token was removed, has expired or was changed, so what was open with it is ended",
                "Ask whoever runs the service for another (casemate service token add).",
            ) from None

    def _look_again(self) -> None:
        if self._next is None and self._open:
            self._next = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        """One look for all that are open. What cannot be read twice running lets in nobody: once it may just be being
        written, or there was no descriptor left for a moment."""
        self._next = None
        try:
            self._end_all_but(self._principals_of({token for token, _, _ in self._open.values()}))
            self._has_failed = False
        except Exception:  # noqa: BLE001 - whatever it is: nothing stays open because nobody looks any more
            _log.warning("tokens cannot be looked at", exc_info=True, extra={"event": "tokens"})
            if self._has_failed:
                self._end_all_but({})
            self._has_failed = True
        finally:
            self._look_again()

    def _end_all_but(self, known: Mapping[str, Principal]) -> None:
        for token, principal, held in self._open.values():
            if known.get(token) != principal and not held.expired():
                held.reschedule(0)
