"""The forms in which output may show a secret: the value itself, and what common encoders make of it. Pure.

Every form is literal bytes. A form in base64 (RFC 4648, sections 4 and 5) has only the characters that depend on the
value alone; there is one for each of its three offsets within a group of three bytes.
"""

from __future__ import annotations

import base64
import html
import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache

SHORTEST = 8  # bytes of a value: a shorter one occurs in innocent text, too
_SHORTEST_LINE = 16  # bytes of a line that is a secret too
_NO_SECRET = ("-----BEGIN", "-----END")  # lines that all keys have (RFC 7468)
_B64_DEPENDS_ON_BEFORE = (0, 2, 3)  # characters, for 0, 1 and 2 bytes before the value in its group
_B64_WIDTHS = (64, 76)  # of lines: RFC 7468 (PEM), RFC 2045 (MIME, and coreutils' base64)
_HEX_WIDTH = 60  # of a line of xxd -p
_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"  # RFC 3986, section 2.3
# What else encoders leave as it is: Python's quote, encodeURIComponent and encodeURI (ECMA-262).
_LEFT_BY_URL_ENCODERS = ("", "/", "!*'()", ";/?:@&=+$,#!*'()")
_ESCAPED_FOR_HTML = {ord(one): f"\\u{ord(one):04x}" for one in "<>&'"}
_UNSAFE_IN_SHELL = re.compile(r"([^A-Za-z0-9_@%+=:,./^-])")  # bash's printf %q puts a backslash before these


def forms_of(value: str) -> frozenset[bytes]:
    """Return all forms of ``value`` and of its twins, which differ in Unicode normal form or white space."""
    forms: set[bytes] = set()
    for twin in twins_of(value):
        forms.update(_raw(twin), _base64(twin.encode()), _hex(twin.encode()), _url(twin))
        forms.update(_json(twin), _literals(twin), _entities(twin), _shell(twin))
    return frozenset(form for form in forms if len(form) >= SHORTEST)


def twins_of(value: str) -> set[str]:
    """Return ``value`` as programs change it: normalized (Unicode, annex 15), stripped, other line ends and spaces."""
    same = {value, value.strip(), value.replace("\n", "\r\n"), " ".join(value.split())}
    return {unicodedata.normalize(form, one) for one in same for form in ("NFC", "NFD")} | same


def lines_of(value: str) -> tuple[str, ...]:
    """Return the lines of a multi-line value that are secrets too: programs show a key line by line, or indented."""
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) < 2:
        return ()
    return tuple(one for one in lines if len(one.encode()) >= _SHORTEST_LINE and not one.startswith(_NO_SECRET))


def _raw(text: str) -> Iterator[bytes]:
    yield from (text.lower().encode(), text.upper().encode())  # as names of hosts and headers
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        yield text.encode(encoding)


def _base64(data: bytes) -> Iterator[bytes]:
    for before, depends in enumerate(_B64_DEPENDS_ON_BEFORE):
        whole = (before + len(data)) * 8 // 6  # characters made of nothing else but the value
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            core = encode(bytes(before) + data)[depends:whole]
            yield core
            if not before:
                yield from (_wrap_lines(core, width) for width in _B64_WIDTHS)


def _hex(data: bytes) -> Iterator[bytes]:
    plain = data.hex().encode()
    yield from (plain, plain.upper(), _wrap_lines(plain, _HEX_WIDTH))
    yield from (_each(data, _bytes_as("\\x%02x")), _each(data, _bytes_as("\\x%02X")))


def _each(data: bytes, table: tuple[bytes, ...]) -> bytes:
    """Replace each byte of ``data`` by its entry in ``table``."""
    return b"".join([table[byte] for byte in data])


@cache
def _bytes_as(escape: str, left: str = "") -> tuple[bytes, ...]:
    """Return each byte as ``escape`` writes it; the characters in ``left`` stay as they are."""
    return tuple(bytes([byte]) if chr(byte) in left else (escape % byte).encode() for byte in range(256))


def _wrap_lines(data: bytes, width: int) -> bytes:
    return b"\n".join(data[start : start + width] for start in range(0, len(data), width))


def _url(text: str) -> Iterator[bytes]:
    """Percent-encoding (RFC 3986, section 2.1), including the ``+`` of HTML forms."""
    data = text.encode()
    for escape in ("%%%02X", "%%%02x"):
        yield _each(data, _bytes_as(escape))
        for left in _LEFT_BY_URL_ENCODERS:
            encoded = _each(data, _bytes_as(escape, _UNRESERVED + left))
            yield from (encoded, encoded.replace(b"%20", b"+"))


def _json(text: str) -> Iterator[bytes]:
    """Strings of JSON (RFC 8259, section 7), also JSON within JSON, with escaped slashes, or escaped for HTML."""
    for ascii_only in (True, False):
        plain = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        for one in {plain, plain.replace("/", "\\/"), plain.translate(_ESCAPED_FOR_HTML)}:
            yield from (one.encode(), _upper_escapes(one).encode())
            yield json.dumps(one, ensure_ascii=ascii_only)[1:-1].encode()
    units = text.encode("utf-16-be")
    for number in (units.hex(), units.hex().upper()):
        yield "".join([f"\\u{number[at : at + 4]}" for at in range(0, len(number), 4)]).encode()


def _upper_escapes(text: str) -> str:
    return re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), text)


def _literals(text: str) -> Iterator[bytes]:
    """As Python's ``repr`` and Node's ``inspect`` show it, between quotes of either kind."""
    escaped = (repr(text + "'\"")[1:-4], ascii(text + "'\"")[1:-4], repr(text.encode() + b"'\"")[2:-4])
    for one in escaped:  # each has its apostrophes escaped, since there are both kinds of quotes
        bare = one.replace("\\'", "'")
        yield from (one.encode(), bare.encode(), bare.replace('"', '\\"').encode())


def _entities(text: str) -> Iterator[bytes]:
    """Character references of HTML (section 13.5 of the standard)."""
    named = html.escape(text, quote=True)
    for one in (
        named,
        named.replace("&#x27;", "&#39;"),
        named.replace("&#x27;", "&apos;"),
        html.escape(text, quote=False),
    ):
        yield from (one.encode(), one.encode("ascii", "xmlcharrefreplace"))
    yield named.replace("&#x27;", "&#39;").replace("&quot;", "&#34;").encode()
    for before, escape in (("&#", "%d"), ("&#x", "%x"), ("&#x", "%X")):
        yield "".join([f"{before}{escape % ord(one)};" for one in text]).encode()


def _shell(text: str) -> Iterator[bytes]:
    """As shells quote words: in apostrophes, in double quotes, with backslashes, and as ``$'…'``."""
    yield text.replace("'", "'\\''").encode()
    yield text.replace("'", "'\"'\"'").encode()
    yield re.sub(r'([\\"$`])', r"\\\1", text).encode()
    yield _UNSAFE_IN_SHELL.sub(r"\\\1", text).encode()
    yield text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t").encode()
