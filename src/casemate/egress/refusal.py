"""Why a connection is not made, in words for whoever wanted it."""

from __future__ import annotations

_MOST_HOST = 253  # characters of a name (RFC 1035, section 2.3.4, without the root's)
_MOST_REASON = 200  # characters


class Refused(Exception):
    """Something that the terms do not allow. ``reason``: which rule or policy; ``remedy``: what would allow it."""

    def __init__(self, host: str, port: int, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.host = host_as_text(host)
        self.port = port
        self.reason = reason_as_text(reason)
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


def host_as_text(host: str) -> str:
    """What a cell asked for, safe to show: ASCII without spaces, and as long as a name may be."""
    return "".join(c if 0x20 < ord(c) < 0x7F else "?" for c in host[:_MOST_HOST]) or "?"


def reason_as_text(reason: str) -> str:
    """Why, safe to show and to keep: ASCII, and short."""
    return "".join(c if 0x20 <= ord(c) < 0x7F else "?" for c in reason[:_MOST_REASON])
