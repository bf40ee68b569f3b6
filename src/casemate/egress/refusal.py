"""Why a connection is not made, in words for whoever wanted it."""

from __future__ import annotations


class Refused(Exception):
    """Something that the terms do not allow. ``reason``: which rule or policy; ``remedy``: what would allow it."""

    def __init__(self, host: str, port: int, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.host = printable(host)
        self.port = port
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.port else self.host
        text = f"casemate: {where} is refused: {self.reason}."
        return f"{text} {self.remedy}" if self.remedy else text


class Unreachable(Refused):
    """Something that was allowed and could not be reached."""

    def __str__(self) -> str:
        return f"casemate: {self.host}:{self.port} cannot be reached: {self.reason}."


class Spent(Exception):
    """The cell has used up what it may transfer, or a connection its time."""


def printable(text: str) -> str:
    """``text`` from a cell, safe to show: ASCII, and short."""
    return "".join(c if 0x20 < ord(c) < 0x7F else "?" for c in text[:80]) or "?"
