"""What is compressed and holds a secret, or takes too much to be searched for one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pytest

from casemate.redaction.content import WITHHELD, Budget, reason_to_withhold
from casemate.redaction.redaction import Redaction

SECRET = "tr0ub4dor&3-good-pass"
REDACTION = Redaction({"TOKEN": SECRET})


def archive(text: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of one member."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        made.writestr("in.txt", text)
    return file.getvalue()


def why(data: bytes, budget: int = 8 << 20) -> str:
    """Why ``data`` is withheld."""
    return reason_to_withhold(lambda at, size: data[at : at + size], len(data), REDACTION, Budget(budget))


@pytest.mark.parametrize("before", [b"", b"#!/usr/bin/python3\n", b"\x7fELF" + bytes(60_000), bytes(200_000)])
def test_va_07_a_member_is_looked_into_whatever_comes_before_the_archive(before: bytes) -> None:
    assert why(before + archive(f"{'x' * 500} {SECRET} {'x' * 500}")) == WITHHELD
    assert why(before + archive("x" * 5000)) == ""


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_va_07_an_archive_that_cannot_be_searched_is_withheld(method: int) -> None:
    assert "method" in why(archive(SECRET, method))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_va_07_an_archive_with_an_encrypted_member_is_withheld(method: int) -> None:
    plain = archive("nothing of it", method)
    at = plain.index(b"PK\x03\x04") + 6  # its flags
    assert why(plain) == ""
    assert "encrypted" in why(plain[:at] + bytes([plain[at] | 1]) + plain[at + 1 :])


def test_va_07_headers_that_lead_nowhere_use_the_budget_up() -> None:
    header = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, 0, 0, 0, 0)
    read: list[int] = []

    def reading(at: int, size: int) -> bytes:
        read.append(size)
        return (header * 10_000)[at : at + size]

    assert "too large" in reason_to_withhold(reading, len(header) * 10_000, REDACTION, Budget(1 << 20))
    assert len(read) < 1000


def test_va_07_several_archives_share_a_budget() -> None:
    data, budget = archive("x" * 5000), Budget(20_000)
    reasons = [reason_to_withhold(lambda at, size: data[at : at + size], len(data), REDACTION, budget) for _ in "123"]
    assert reasons[0] == ""
    assert "too large" in reasons[-1]


def test_what_is_no_archive_is_handed_out() -> None:
    assert why(b"PK is no archive" * 100) == ""
    assert why(b"") == ""


def tarred(content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        info = tarfile.TarInfo("deep/inside.bin")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def in_pdf(content: bytes) -> bytes:
    begin = b"%PDF-1.7\n1 0 obj\n<< /Filter /FlateDecode >>\nstream\r\n"
    return begin + zlib.compress(content) + b"\nendstream\nendobj\n"


def in_png(content: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    text = b"Comment\0\0" + zlib.compress(content)
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0"))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"zTXt", text) + chunk(b"IEND", b"")


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("member", content)
    return made.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "two in one gz": lambda one: gzip.compress(b"first") + gzip.compress(one), "bz2": bz2.compress,
    "xz": lzma.compress, "tar.gz": tarred, "pdf": in_pdf, "png": in_png, "zip in zip": lambda one: zipped(zipped(one)),
    "gz in zip": lambda one: zipped(gzip.compress(one)), "zip in gz": lambda one: gzip.compress(zipped(one)),
    "gz stored in zip": lambda one: zipped(gzip.compress(one), zipfile.ZIP_STORED),
}  # fmt: skip


@pytest.mark.parametrize("packer", PACKERS)
def test_what_is_compressed_in_any_of_the_usual_ways_is_looked_into(packer: str) -> None:
    long = os.urandom(300_000)
    for content in (SECRET.encode(), long + SECRET.encode() + long):
        assert why(PACKERS[packer](content)) == WITHHELD
    assert why(PACKERS[packer](long)) == "", "the control"


@pytest.mark.parametrize("data", [b"\x28\xb5\x2f\xfd" + bytes(50), b"7z\xbc\xaf\x27\x1c" + bytes(50)])
def test_what_cannot_be_looked_into_is_withheld(data: bytes) -> None:
    assert "cannot be searched" in why(data)


def test_an_xz_that_would_take_too_much_memory_is_withheld() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    huge = lzma.LZMACompressor(filters=filters)
    data = huge.compress(b"x") + huge.flush()
    assert "cannot be searched" in why(data)


def test_an_xz_that_python_cannot_read_to_its_end_is_withheld() -> None:
    data = bytearray(lzma.compress(b"x" * 1000))
    data[len(data) // 2] ^= 0xFF
    assert "cannot be searched" in why(bytes(data))


@pytest.mark.parametrize("make", [gzip.compress, bz2.compress, lzma.compress, in_pdf, in_png])
def test_what_unpacks_to_too_much_or_to_nothing_ends(make: Callable[[bytes], bytes]) -> None:
    assert "too large" in why(make(bytes(30 << 20)), budget=1 << 20)
    for cut in (1, 20, len(make(b"abc" * 100)) // 2):
        assert why(make(b"abc" * 100)[:cut]) == ""
