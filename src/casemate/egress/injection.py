"""Injection: puts secrets into the fields of requests, and redacts them from answers. Pure.

Programs only have placeholders. A placeholder is replaced in a TLS request to the secret's host if it appears once, in
the secret's field and in the secret's format. Any other placeholder stays, and the record notes it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from casemate.model.plan import Placeholder
from casemate.policy.hosts import HTTPS, canonical

if TYPE_CHECKING:
    from casemate.redaction.redaction import Redaction

Fields = list[tuple[bytes, bytes]]  # header fields, in order
_BASIC = re.compile(rb"(basic) +([A-Za-z0-9+/=]+)\Z", re.IGNORECASE)  # RFC 7617
_AUTHORITY = re.compile(rb"([^:]+)(?::([0-9]{1,5}))?\Z")
_REFLECTING = (b"TRACE", b"TRACK", b"CONNECT")  # the answer echoes the request, or there is none
_PARTIAL = (b"accept-encoding", b"range", b"if-range")  # these request a partial or encoded answer
_SPACE = b" \t"  # allowed around a field's value (RFC 9110, section 5.5)


@dataclass(frozen=True, slots=True)
class RewrittenRequest:
    headers: Fields  # for the server
    notes: tuple[str, ...] = ()  # placeholders that were not replaced, in words without secrets; recorded as denied
    used: tuple[str, ...] = ()  # the injections, in words without secrets


@dataclass(frozen=True, slots=True)
class _Sent:
    """The facts of a request that decide whether a secret may be injected."""

    host: str
    port: int
    is_tls: bool
    method: bytes
    names: tuple[bytes, ...]  # of its fields, in lower case
    is_for_host: bool  # every Host field names `host`


class Injection:
    """Injects the secrets of one run or session into the requests that the egress proxy reads. The proxy's thread calls
    it for every request that the rules allow. It neither blocks nor raises."""

    def __init__(self, placeholders: Sequence[Placeholder]) -> None:
        self._placeholders = tuple(placeholders)
        # Canonical names and ports whose TLS ends at the egress proxy.
        self.places = frozenset(place for one in placeholders for place in one.places)
        self.hosts = frozenset(host for host, _ in self.places)
        self._redactions: dict[str, Redaction] = {}

    def __repr__(self) -> str:
        return f"Injection({', '.join(one.name for one in self._placeholders)})"

    def request(
        self, host: str, port: int, is_tls: bool, method: bytes, target: bytes, headers: Fields
    ) -> RewrittenRequest:
        """Return the header fields for the server. ``host`` is the canonical name that was dialed, ``target`` the path
        with its query. ``headers`` exclude those of the connection, such as Host and Content-Length."""
        names = tuple(name.lower() for name, _ in headers)
        sent = _Sent(host, port, is_tls, method.upper(), names, _is_for(host, port, names, headers))
        notes = [_note(one, "in the URL") for one in self._placeholders if _is_in_url(one, target)]
        used: list[Placeholder] = []
        written = [self._field(sent, name, value, notes, used) for name, value in headers]
        if used:  # redaction needs a complete, uncompressed answer
            written = [item for item in written if item[0].lower() not in _PARTIAL]
            written.append((b"accept-encoding", b"identity"))
        told = (f"{one.name} was injected into its field {one.header}" for one in used)
        return RewrittenRequest(written, tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(told)))

    def watch(self) -> Callable[[bytes], tuple[str, ...]]:
        """Return a function that takes the parts of a request's body in order and returns notes."""
        missing = {one.text.encode(): one for one in self._placeholders}
        missing |= {quote(one.text, safe="").encode(): one for one in self._placeholders}
        longest = max(map(len, missing), default=1)
        before = b""

        def look(data: bytes) -> tuple[str, ...]:
            nonlocal before
            seen = before + data
            found = dict.fromkeys(_note(one, "in the body") for text, one in missing.items() if text in seen)
            for text in [text for text, one in missing.items() if _note(one, "in the body") in found]:
                del missing[text]
            before = seen[-(longest - 1) :] if longest > 1 else b""
            return tuple(found)

        return look

    def hide(self, host: str) -> BodyRedaction:
        """Return the redaction of one answer's body. It does not change the length."""
        there = self._of(host)
        return BodyRedaction(self._redaction(host), {one.value.encode(): one.text.encode() for one in there})

    def _of(self, host: str) -> list[Placeholder]:
        return [one for one in self._placeholders if any(host == place for place, _ in one.places)]

    def _redaction(self, host: str) -> Redaction:
        if host not in self._redactions:
            from casemate.redaction.redaction import Redaction  # loaded on the first injection

            self._redactions[host] = Redaction({one.name: one.value for one in self._of(host)})
        return self._redactions[host]

    def _field(
        self, sent: _Sent, name: bytes, value: bytes, notes: list[str], used: list[Placeholder]
    ) -> tuple[bytes, bytes]:
        plain = value.strip(_SPACE)
        credentials = _credentials(plain)
        for one in self._placeholders:
            text = one.text.encode()
            if text in name:
                notes.append(_note(one, "in the name of a field"))
            elif text in value or any(text in part for part in credentials):
                if why := _why_not(sent, one, name.lower()):
                    notes.append(_note(one, why))
                elif (put := _put_in(one, plain, credentials)) is None:
                    notes.append(_note(one, "in a form other than its format"))
                else:
                    plain, value = put, put
                    credentials = _credentials(plain)
                    used.append(one)
        return name, value


class BodyRedaction:
    """Replaces secrets in an answer's body with their placeholders, piece by piece. If the lengths differ or the secret
    is encoded, it writes asterisks. It holds back what may be the start of a secret until more comes."""

    def __init__(self, redaction: Redaction, texts: dict[bytes, bytes]) -> None:
        self._redaction = redaction
        self._texts = texts
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that can be passed on now."""
        data = self._held + data
        scan = self._redaction.scan(data)
        hidden = bytearray(data)
        for begin, end, _ in scan.found:
            text = self._texts.get(data[begin:end], b"")
            hidden[begin:end] = text if len(text) == end - begin else b"*" * (end - begin)
        self._held = bytes(hidden[scan.upto :])
        return bytes(hidden[: scan.upto])

    def finish(self) -> bytes:
        """Return the rest."""
        rest, self._held = self._held, b""
        return rest


def _why_not(sent: _Sent, one: Placeholder, name: bytes) -> str:
    """Why ``one`` may not be injected into the field ``name``; empty if it may."""
    if not any(sent.host == host for host, _ in one.places):
        return "to a host that it is not for"
    if not sent.is_tls:
        return "in clear"
    if (sent.host, sent.port) not in one.places:
        return "to a port that it is not for"
    if not sent.is_for_host:
        return "in a request that names another host"
    if sent.method in _REFLECTING:
        return "by a method that echoes requests"
    if name != one.header.lower().encode():
        return "in a field that it is not for"
    return "in a field that occurs more than once" if sent.names.count(name) > 1 else ""


def _put_in(one: Placeholder, value: bytes, credentials: tuple[bytes, ...]) -> bytes | None:
    """Return the field's value with the secret in place of ``one``; None if the format does not match."""
    text, secret = one.text.encode(), one.value.encode()
    form = one.format.encode()
    if _without_case_of_scheme(value) == _without_case_of_scheme(form.replace(b"{}", text)):
        return form.replace(b"{}", secret)
    if credentials and one.header == "authorization" and form.lower() == b"basic {}":
        user, password = credentials
        if text in (user, password) and not (text == user and b":" in secret):
            parts = (secret if part == text else part for part in (user, password))
            return b"Basic " + base64.b64encode(b":".join(parts))
    return None


def _without_case_of_scheme(value: bytes) -> bytes:
    """Authentication schemes ignore case (RFC 9110, section 11.1)."""
    scheme, space, rest = value.partition(b" ")
    return scheme.lower() + space + rest if space else value


def _credentials(value: bytes) -> tuple[bytes, ...]:
    """Return the user and password of Basic authentication, or nothing."""
    found = _BASIC.match(value)
    try:
        user, colon, password = base64.b64decode(found[2], validate=True).partition(b":") if found else (b"", b"", b"")
    except binascii.Error:
        return ()
    return (user, password) if colon else ()


def _is_for(host: str, port: int, names: Sequence[bytes], headers: Fields) -> bool:
    """Whether every Host field names ``host``: one server may serve several hosts, but the secret is for one."""
    for name, (_, value) in zip(names, headers, strict=True):
        if name == b"host":
            said = _AUTHORITY.match(value.strip(_SPACE))
            if said is None or canonical(said[1].decode("latin-1")) != host or int(said[2] or HTTPS) != port:
                return False
    return True


def _is_in_url(one: Placeholder, target: bytes) -> bool:
    text = one.text.encode()
    return text in target or text in unquote_to_bytes(target)


def _note(one: Placeholder, where: str) -> str:
    return f"the placeholder of {one.name} was sent {where} and not replaced"
