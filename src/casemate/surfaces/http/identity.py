"""Who sends a request, and whether it may come at all: decided from its headers before anything of it is read. Pure.

A browser on the user's machine may be made to send requests by any page. It always says so with ``Origin``, and of a
name that was bound anew to this machine (DNS rebinding) with ``Host``; both must be expected ones, whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from casemate.model.operation import Audience, Principal

_LOCAL = frozenset({"localhost", "casemate"})
_MOST_NAME = 100  # characters
_SINGLE = (b"host", b"origin", b"authorization", b"casemate-as", b"casemate-namespace", b"content-length")


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a request came in. ``hosts``: what it may name as its host, with the port where that is not the usual;
    ``origins``: of pages that may ask, none unless the operator says so."""

    kind: Literal["unix", "tcp"]
    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()


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
class Heard:
    """A request's head, of which each name that matters is there once. ``headers``: by name in lower case."""

    headers: dict[str, str]

    def get(self, name: str) -> str | None:
        """The value of a header."""
        return self.headers.get(name)


def heard(raw: Iterable[tuple[bytes, bytes]]) -> Heard:
    """The headers of a request. Raises :class:`Refused` for one that is there twice, and could be read in two ways."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.lower()
        if key in _SINGLE and key.decode("latin-1") in found:
            raise Refused(400, f"the header {key.decode('latin-1')!r} is there twice")
        found[key.decode("latin-1")] = value.decode("latin-1")
    return Heard(found)


def check_place(head: Heard, listener: Listener) -> None:
    """Whether it was meant for this service and comes from no strange page. Raises :class:`Refused`."""
    host = (head.get("host") or "").lower()
    if host not in listener.hosts:
        raise Refused(
            421,
            f"this service is not called {host[:100]!r}",
            "Ask for it by the address at which it listens, or name the host when it is started (--host-name).",
        )
    origin = head.get("origin")
    if origin is not None and origin.lower() not in listener.origins:
        raise Refused(
            403, f"pages of {origin[:100]!r} may not use this service", "Name the page's origin when it is started."
        )


def user_of(head: Heard) -> Principal:
    """Who sends it over a Unix socket: the user. Raises :class:`Refused`."""
    return Principal("user", Audience.OPERATOR, _named(head, "casemate-namespace") or "default", True)


def token_of(head: Heard) -> str:
    """The token that it comes with; empty for none."""
    scheme, _, token = (head.get("authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def known_as(head: Heard, principal: Principal | None) -> Principal:
    """Who sends it over TCP: ``principal``, who comes with its token, where there is one. Raises :class:`Refused`."""
    if principal is None:
        raise Refused(
            401,
            "the token is unknown or has expired" if head.get("authorization") else "a token is needed",
            "Make one where the service runs (casemate service token add), and send it as Authorization: Bearer ...",
        )
    wanted = _named(head, "casemate-namespace")
    if wanted is not None and wanted != principal.namespace:
        raise Refused(403, f"this token is of the namespace {principal.namespace!r}, not of {wanted!r}")
    return principal


def lowered(head: Heard, principal: Principal) -> Principal:
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
        name=f"agent:{name}", audience=Audience.AGENT, may_approve=may_approve and principal.may_approve
    )


def _named(head: Heard, header: str) -> str | None:
    raw = head.get(header)
    if raw is None:
        return None
    name = unquote(raw)
    if not _is_name(name):
        raise Refused(400, f"the header {header} holds no printable name of 1 to {_MOST_NAME} characters")
    return name


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MOST_NAME and name.isprintable()


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
