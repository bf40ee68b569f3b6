"""Answers name queries for a cell's own names, without mounts. The cell cannot read the machine's ``/etc/hosts``, whose
names lead to addresses and not to the egress proxy, so it queries even ``localhost``.

Sources: RFC 1035, section 4; RFC 3596, section 2.5; RFC 6761, section 6.3.
"""

from __future__ import annotations

import os
import struct

MOST_QUESTION = 1232  # bytes; more than any query needs
_A, _PTR, _LOOPBACK, _LOCALHOST = b"\0\1", b"\0\x0c", b"\x7f\0\0\1", b"\x09localhost"
_REVERSE = (b"\x03127\x07in-addr\x04arpa", b"\x011" + b"\x010" * 31 + b"\x03ip6\x04arpa")


def answer(message: bytes, hostname: str) -> bytes | None:
    """The answer to a query for the cell's own names: ``localhost`` (also with a search domain appended), the machine's
    ``hostname``, or a loopback address. None for other names."""
    name, _, rest = message[12:].partition(b"\0")
    if len(rest) < 4 or message[2] & 0xF8 or message[4:10] != b"\0\1\0\0\0\0":
        return None  # not a query with exactly one question
    own = b"".join(bytes((len(label),)) + label for label in os.fsencode(hostname.lower()).split(b"."))
    kind, data = rest[:2], b""
    if name.lower().endswith(_REVERSE):
        data = _LOCALHOST + b"\0" if kind == _PTR else b""
    elif name.lower() == own or name.lower().startswith(_LOCALHOST):
        data = _LOOPBACK if kind == _A else b""
    else:
        return None
    record = b"\xc0\x0c" + kind + struct.pack("!HIH", 1, 0, len(data)) + data if data else b""
    head = bytes((message[2] | 0x80, 0x80, 0, 1, 0, bool(data), 0, 0, 0, 0))
    return message[:2] + head + message[12 : 17 + len(name)] + record


def refuse(message: bytes) -> bytes:
    """The answer without a name server: the name does not exist (NXDOMAIN)."""
    return message[:2] + bytes((message[2] | 0x80, 0x83)) + message[4:] if len(message) >= 12 else b""
