"""Signed heads of the record, in a file beside it: a line of JSON each, with the hash of the line before it.

With the files but without the key, rows and their chain can be rewritten, but not what was signed of them. The
signature of the last line covers all lines before it, because it covers their hash. An anchor may have a checkpoint:
rows up to it were dropped after their retention time, and with them the anchors before ``begins``.

With the key, another history can be signed: copies elsewhere (:mod:`casemate.audit.outside`) reveal that.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casemate.audit.chain import EMPTY, GENESIS, Head
from casemate.audit.database import head_in
from casemate.audit.journal import append_whole
from casemate.evidence.dsse import PublicKey, Sign, base64_of, verify
from casemate.evidence.statement import to_json

_FORMAT = "casemate-anchor-1"
_MOST = 4096  # bytes of a line


@dataclass(frozen=True, slots=True)
class Anchor:
    """One line: ``head``, signed by ``key`` at ``time``; ``hash``: the line's hash."""

    head: Head
    time: int
    key: str
    previous: str
    hash: str
    signed: bytes
    signature: bytes
    checkpoint: Head = EMPTY
    begins: str = GENESIS

    def is_signed(self, keys: Mapping[str, PublicKey]) -> bool:
        """Whether the key that it names is in ``keys``, and has signed it."""
        return self.key in keys and verify(self.signed, self.signature, keys[self.key])


class Anchors:
    """The file beside the record at ``path``. Only the holder of the database may write to it. Raises ``OSError``."""

    def __init__(self, path: str, sign: Sign) -> None:
        self.path = Path(f"{path}.anchors")
        self._sign = sign

    def sign_head(
        self,
        database: sqlite3.Connection,
        keys: Mapping[str, PublicKey],
        checkpoint: Head = EMPTY,
        *,
        sync: bool = True,
    ) -> str:
        """Sign the head of the record in ``database``, and return the line; empty if it is already signed. ``keys``:
        ours, by id. Raises ``Unavailable`` if the key is not available, and ``sqlite3.Error``."""
        head, last = head_in(database), self.last()
        if checkpoint == EMPTY and (head.count == 0 or (last is not None and last.head == head)):
            return ""
        (noted,) = database.execute("SELECT anchor FROM kept").fetchone()
        previous = noted if last is None else last.hash
        if last is not None and not (last.is_signed(keys) and noted in (last.hash, last.previous)):
            previous = GENESIS if noted == last.hash else noted  # none of our signatures covers that line
        line = self.append(head, previous, checkpoint, sync=sync)
        database.execute("UPDATE kept SET anchor = ?", (hash_of_line(line),))
        return line

    def append(self, head: Head, previous: str, checkpoint: Head = EMPTY, *, sync: bool = True) -> str:
        """Sign ``head``, and return the line. Raises ``Unavailable`` if the key is not available."""
        fields: dict[str, Any] = {
            "format": _FORMAT, "count": head.count, "last": head.last, "time": int(time.time()), "previous": previous,
        }  # fmt: skip
        if checkpoint != EMPTY:
            begins = next((one.previous for _, one in self._lines_after(checkpoint)), GENESIS)
            fields |= {"checkpoint": [checkpoint.count, checkpoint.last], "begins": begins}
        key, signature = self._sign(to_json(fields))
        line = to_json({**fields, "key": key, "signature": base64_of(signature)})
        self._write(line + b"\n", os.O_APPEND, sync=sync)
        return line.decode()

    def last(self) -> Anchor | None:
        """The last complete line. An incomplete one, from a killed process, is cut off."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            tail = os.pread(fd, 2 * _MOST, max(0, size - 2 * _MOST))
            if whole := tail.rfind(b"\n") + 1 - len(tail):
                os.ftruncate(fd, size + whole)
                tail = tail[:whole]
            return read_line(tail.splitlines()[-1].decode("ascii")) if tail else None
        except ValueError:
            return None
        finally:
            os.close(fd)

    def drop_before(self, checkpoint: Head) -> None:
        """Drop the lines before the first one that reaches ``checkpoint``."""
        lines = [line for line, _ in self._lines_after(checkpoint)]
        fresh = self.path.with_suffix(".fresh")
        fresh.unlink(missing_ok=True)
        self._write("".join(f"{line}\n" for line in lines).encode(), os.O_EXCL, fresh)
        fresh.replace(self.path)

    def _lines_after(self, checkpoint: Head) -> Iterator[tuple[str, Anchor]]:
        for line in lines_in(self.path):
            if (one := read_line(line)).head.count >= checkpoint.count:
                yield line, one

    def _write(self, data: bytes, how: int, path: Path | None = None, *, sync: bool = True) -> None:
        fd = os.open(path or self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how, 0o600)
        try:
            append_whole(fd, data)
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)


def lines_in(path: Path) -> Iterator[str]:
    """The lines of a file of anchors; none if it does not exist."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            yield from (line.rstrip("\n") for line in file)
    except FileNotFoundError:
        return


def read_line(line: str) -> Anchor:
    """One anchor. Raises ``ValueError`` if the line is not an anchor."""
    try:
        fields = json.loads(line)
        key, signature = str(fields.pop("key")), base64.b64decode(fields.pop("signature"), validate=True)
        checkpoint = Head(*fields["checkpoint"]) if "checkpoint" in fields else EMPTY
        head, when = Head(fields["count"], fields["last"]), fields["time"]
        if fields["format"] != _FORMAT or not all(type(one) is int for one in (head.count, when, checkpoint.count)):
            raise ValueError("another format")
        return Anchor(
            head, when, key, str(fields["previous"]), hash_of_line(line), to_json(fields),
            signature, checkpoint, str(fields.get("begins", GENESIS)),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("no anchor") from error


def hash_of_line(line: str) -> str:
    """The hash that the next line has as ``previous``."""
    return hashlib.sha256(line.encode("ascii", "replace")).hexdigest()


def check(
    lines: Iterable[str], keys: Mapping[str, PublicKey] | None, *, may_miss: bool = False
) -> tuple[list[Anchor], str]:
    """The anchors before the first bad one, and what is wrong with that. ``keys``: None if no keys are known.
    ``may_miss``: for lines of a copy, where some may be missing."""
    good: list[Anchor] = []
    ends: list[Anchor] = []
    problem = ""
    for line in lines:
        try:
            one = read_line(line)
        except ValueError:
            problem = f"line {len(good) + 1} of the anchors is not an anchor"
            break
        if good and one.previous != good[-1].hash:
            if not may_miss:
                problem = f"line {len(good) + 1} of the anchors does not carry the hash of the line before it"
                break
            ends.append(good[-1])
        good.append(one)
    if good and not may_miss and good[0].previous not in (GENESIS, *(one.begins for one in good)):
        return [], "the first lines of the anchors are missing"
    if keys is not None and not all(one.is_signed(keys) for one in (*ends, *good[-1:])):
        bad = next(number for number, one in enumerate(good) if not one.is_signed(keys))
        return good[:bad], f"line {bad + 1} of the anchors is not signed by a known key"
    return good, problem
