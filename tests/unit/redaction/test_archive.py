"""Zip archives that hold a secret, or take too much to be searched for one."""

from __future__ import annotations

import io
import struct
import zipfile

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


def why(data: bytes, budget: int = 1 << 20) -> str:
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
