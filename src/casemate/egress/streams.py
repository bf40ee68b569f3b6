"""Streams of HTTP/2 that belong together, and the head of a request as it is understood. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from casemate.egress.terms import Hiding
from casemate.policy.hosts import HTTPS, canonical

_MOST_FIELDS = 256
_METHOD = re.compile(rb"[A-Z]{1,20}\Z")
_PATH = re.compile(rb"(?:/[!\"$-~]*|\*)\Z")  # origin form, without a fragment
_AUTHORITY = re.compile(rb"([0-9A-Za-z._-]+)(?::([0-9]{1,5}))?\Z")
_NAME = re.compile(rb":?[!#$%&'*+.^_`|~0-9a-z-]+\Z")  # RFC 9110, section 5.1, in small letters
_VALUE = re.compile(rb"[^\x00\r\n]*\Z")
_NOT_PASSED_ON = (b"host", b"proxy-authorization", b"proxy-connection", b"http2-settings")


class BadHead(ValueError):
    """Not the head of a request for this host that everybody reads the same way."""


@dataclass(frozen=True, slots=True)
class Head:
    """``path`` with its query; ``fields`` without those that say for whom it is."""

    method: str
    path: str
    fields: list[tuple[bytes, bytes]]

    def written(self, authority: str, fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The head for the server ``authority``, with ``fields``."""
        return [
            (b":method", self.method.encode()),
            (b":scheme", b"https"),
            (b":authority", authority.encode()),
            (b":path", self.path.encode()),
            *((name.lower(), value) for name, value in fields if name.lower() not in _NOT_PASSED_ON),
        ]


@dataclass(slots=True)
class Pair:
    """A stream of the client's and one of the server's. ``watch`` gets the parts of the request's body; those of
    the answer's go through ``hide``."""

    client: int
    server: int
    watch: Callable[[bytes], None] | None
    hide: Hiding | None = None
    has_asked: bool = False
    has_answered: bool = False

    def other(self, *, is_client: bool) -> int:
        """The other side's stream, for the client or the server."""
        return self.server if is_client else self.client


def head_of(headers: Iterable[tuple[bytes, bytes]], name: str, port: int) -> Head:
    """The head of a request that must be for ``name`` at ``port``. Raises :class:`BadHead`."""
    pseudo, hosts, fields = _parts(headers)
    if b":authority" in pseudo:
        hosts.append(pseudo.pop(b":authority"))
    if pseudo.keys() != {b":method", b":scheme", b":path"} or not hosts:
        raise BadHead("its pseudo-fields are not those of a request")
    if pseudo[b":scheme"] != b"https":
        raise BadHead("its scheme is not https")
    if any(_place(host) != (name, port) for host in hosts):
        raise BadHead("it names another host")
    method, path = pseudo[b":method"], pseudo[b":path"]
    if not _METHOD.match(method) or method == b"CONNECT":
        raise BadHead("its method is none")
    if not _PATH.match(path) or (path == b"*" and method != b"OPTIONS"):
        raise BadHead("its path is none")
    return Head(method.decode(), path.decode(), fields)


def _parts(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[dict[bytes, bytes], list[bytes], list[tuple[bytes, bytes]]]:
    """Pseudo-fields, values of Host, and what is passed on."""
    pseudo: dict[bytes, bytes] = {}
    fields: list[tuple[bytes, bytes]] = []
    hosts: list[bytes] = []
    for field, value in ((bytes(one), bytes(two)) for one, two in headers):
        if not _NAME.match(field) or not _VALUE.match(value) or field in pseudo:
            raise BadHead("a field that is none, or comes twice")
        if field.startswith(b":"):
            pseudo[field] = value
        elif field == b"host":
            hosts.append(value)
        elif field not in _NOT_PASSED_ON:
            fields.append((field, value))
    if len(fields) > _MOST_FIELDS:
        raise BadHead(f"more than {_MOST_FIELDS} header fields")
    return pseudo, hosts, fields


def _place(authority: bytes) -> tuple[str | None, int]:
    match = _AUTHORITY.match(authority)
    if match is None:
        return None, 0
    return canonical(match[1].decode()), HTTPS if match[2] is None else int(match[2])
