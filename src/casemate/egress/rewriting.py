"""What the door does to requests that it reads, as the terms say: header fields that are changed, bodies watched."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from casemate.egress.terms import Fields, Hiding

if TYPE_CHECKING:
    from casemate.egress.connection import Connection
    from casemate.egress.http import Following

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110, section 5.6.2
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*\Z")


def rewritten(
    connection: Connection, name: str, port: int, method: str, target: str, fields: Fields, *, is_tls: bool
) -> Fields:
    """The fields for the server; what was asked for and not done is put on record. Raises ``ValueError`` for a field
    that could not be written."""
    rewrite = connection.terms.rewrite
    if rewrite is None:
        return fields
    made = rewrite.request(name, port, is_tls, method.encode(), target.encode(), fields)
    _note(connection, name, port, made.notes)
    for used in made.used:
        connection.opening.ledger.note(name, port, "allowed", used)
    if not all(_NAME.match(field) and _VALUE.match(value) for field, value in made.headers):
        raise ValueError("a header field that cannot be written")
    return made.headers


def watcher(connection: Connection, name: str, port: int) -> Callable[[bytes], None] | None:
    """Who looks at the parts of a request's body, in order."""
    rewrite = connection.terms.rewrite
    if rewrite is None:
        return None
    watch = rewrite.watch(name)
    return lambda part: _note(connection, name, port, watch(part))


def answer(connection: Connection, name: str, fields: Fields) -> Fields:
    """The fields of an answer, or its trailers, as the cell may see them."""
    rewrite = connection.terms.rewrite
    return fields if rewrite is None or name not in rewrite.hosts else rewrite.answer(name, fields)


def hiding(connection: Connection, name: str) -> Hiding | None:
    """What an answer's body goes through; None where nothing is put into requests to the host."""
    rewrite = connection.terms.rewrite
    return None if rewrite is None or name not in rewrite.hosts else rewrite.hide(name)


def hidden(following: Following, hide: Hiding) -> bytes:
    """What has come of an answer as the cell may see it. Chunks are written anew: the server may have cut what is
    hidden in two, and a program might choose where."""
    heads, body, trailers = following.taken()
    written = hide.feed(heads) + hide.finish() if heads else b""
    if not following.in_chunks:
        return written + hide.feed(body)
    body = hide.feed(body) + (hide.finish() if following.is_whole else b"")
    if body:
        written += b"%x\r\n%s\r\n" % (len(body), body)
    if following.is_whole:
        lines = (hide.feed(b"%s: %s\r\n" % field) + hide.finish() for field in trailers)
        written += b"0\r\n%s\r\n" % b"".join(lines)
    return written


def _note(connection: Connection, name: str, port: int, notes: tuple[str, ...]) -> None:
    for note in notes:
        connection.opening.ledger.note(name, port, "denied", note)
