"""How much a body of JSON holds, told before it is parsed: every list and mapping in it becomes an object. Pure.

A megabyte of empty lists is twenty megabytes once it is read, and everybody else waits while it is checked.
"""

from __future__ import annotations

from casemate.surfaces.http.identity import Refused

_SMALL = 64 * 1024  # bytes of which nothing needs to be counted
_MOST_CONTAINERS = 25_000  # lists and mappings
_MOST_VALUES = 60_000  # entries of all of them
_MOST_TEXTS = 60_000


def check_shape(body: bytes) -> bytes:
    """The same bytes. Raises :class:`Refused` for more values than are taken. What is not JSON is judged up to where
    that begins, which is all that a parser reads of it."""
    if len(body) <= _SMALL:
        return body
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if plain.count(b'"') > 2 * _MOST_TEXTS:
        raise _too_many(f"{_MOST_TEXTS:,} texts")
    outside = b"".join(plain.split(b'"')[::2])
    if outside.count(b"[") + outside.count(b"{") > _MOST_CONTAINERS:
        raise _too_many(f"{_MOST_CONTAINERS:,} lists and objects")
    if outside.count(b",") > _MOST_VALUES:
        raise _too_many(f"{_MOST_VALUES:,} values")
    return body


def _too_many(most: str) -> Refused:
    return Refused(413, f"the body holds more than {most}", "Give large data as files: PUT /v1/uploads.")
