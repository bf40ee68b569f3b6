"""Hostile output made harmless for a terminal: a terminal obeys what it is shown. Pure.

What passes: text, newlines, tabs, and SGR sequences that set colours and styles. Everything else that a terminal
acts upon, or that makes text look like other text, is shown as an escape (``\x1b``, ``\u202e``):

- the other control characters, C1 included: no cursor movement, title, clipboard, alternate screen or answerback;
- bidirectional and invisible formatting characters, line and paragraph separators;
- SGR sequences that hide text (conceal) or blink.

A carriage return would let a line be written over. It begins a new line instead, so that a progress bar becomes
one line for each of its states. A backspace is shown as ``\x08``.
"""

from __future__ import annotations

import codecs
import re

from casemate.visible import SPECIAL, escape, inert, visible

__all__ = ["Inert", "inert", "visible"]

_LONGEST_SGR = 64  # characters of parameters; longer ones are no colour
_SGR = rf"\x1b\[[0-9;:]{{0,{_LONGEST_SGR}}}m"
_TOKEN = re.compile(rf"(?P<sgr>{_SGR})|(?P<turn>\r\n?)|{SPECIAL}")
_UNFINISHED = re.compile(rf"\x1b(?:\[[0-9;:]{{0,{_LONGEST_SGR}}})?\Z")
_RESET = "\x1b[0m"
# Styles that leave the text readable, and their ends; colours of the usual and the bright palette.
_STYLES = {0, 1, 2, 3, 4, 7, 9, 21, 22, 23, 24, 25, 27, 28, 29, 53, 55, 59}
_COLOURS = {*range(30, 38), *range(39, 48), 49, *range(90, 98), *range(100, 108)}
_EXTENDED = {38, 48, 58}


class Inert:
    """Makes a stream of bytes inert, however it is cut into pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""  # the beginning of what may become an SGR sequence
        self._turned = False  # the last character was a carriage return: a newline that follows belongs to it
        self._styled = False

    def feed(self, data: bytes) -> bytes:
        """What of ``data``, and of what was held back before, can be shown now."""
        return self._inert(self._decoder.decode(data)).encode("utf-8", "replace")

    def end(self) -> bytes:
        """What was held back, and the end of any colour."""
        rest = self._inert(self._decoder.decode(b"", final=True))
        rest += visible(self._unfinished)
        self._unfinished = ""
        if self._styled:
            rest += _RESET
            self._styled = False
        return rest.encode("utf-8", "replace")

    def _inert(self, text: str) -> str:
        if not text:
            return ""
        if self._turned and text[0] == "\n":
            text = text[1:]
            self._turned = False
            if not text:
                return ""
        self._turned = text[-1] == "\r"
        text = self._unfinished + text
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._unfinished = text[cut:]
        return _TOKEN.sub(self._replace_token, text[:cut])

    def _replace_token(self, token: re.Match[str]) -> str:
        if token["turn"]:
            return "\n"
        sequence = token["sgr"]
        if sequence is None:
            return escape(token[0])
        if not _is_readable(sequence[2:-1]):
            return escape("\x1b") + sequence[1:]
        self._styled = sequence not in ("\x1b[m", _RESET)
        return sequence


def _is_readable(parameters: str) -> bool:
    """Whether an SGR sequence with these parameters only sets colours and styles that show."""
    fields = parameters.split(";")
    while fields:
        field = fields.pop(0)
        if ":" in field:
            if not _is_readable_group(field):
                return False
            continue
        number = int(field or 0)
        if number in _EXTENDED:
            if not _took_colour(fields):
                return False
        elif number not in _STYLES and number not in _COLOURS:
            return False
    return True


def _is_readable_group(field: str) -> bool:
    """``4:3`` (a curly underline), ``38:5:196`` or ``38:2::255:0:0``."""
    first, *rest = field.split(":")
    if first == "4":
        return len(rest) == 1 and rest[0] in {"0", "1", "2", "3", "4", "5"}
    return first.isdigit() and int(first) in _EXTENDED and rest[0] in {"2", "5"} and len(rest) <= 6


def _took_colour(fields: list[str]) -> bool:
    """Take the colour that follows a 38, 48 or 58; False when there is none."""
    kind = fields.pop(0) if fields else ""
    length = {"5": 1, "2": 3}.get(kind)
    if length is None or len(fields) < length:
        return False
    del fields[:length]
    return True
