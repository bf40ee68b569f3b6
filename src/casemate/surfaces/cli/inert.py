"""Makes hostile output harmless for a terminal, which obeys what it is shown.

What passes: text, newlines, tabs, and SGR sequences that set colors and styles. Everything else that a terminal
acts upon, or that makes text look like other text, is shown as an escape (``\x1b``, ``\u202e``):

- other control characters, C1 included: no cursor movement, title, clipboard, alternate screen or answerback;
- invisible characters (``casemate.visible``), such as bidirectional formatting and line separators;
- SGR sequences that hide text (conceal) or blink.

A carriage return, which would let text overwrite a line, begins a new line: each state of a progress bar gets its own.
A backspace is shown as ``\x08``.
"""

from __future__ import annotations

import codecs
import re

from casemate.visible import BEFORE, SPECIAL, UNDECIDED, escape, inert, visible

__all__ = ["Inert", "inert", "visible"]

_LONGEST_SGR = 64  # characters of parameters; a longer one is no color
_SGR = rf"\x1b\[[0-9;:]{{0,{_LONGEST_SGR}}}m"
_TOKEN = re.compile(rf"(?P<sgr>{_SGR})|(?P<turn>\r\n?)|{SPECIAL}")
_UNFINISHED = re.compile(rf"(?:\x1b(?:\[[0-9;:]{{0,{_LONGEST_SGR}}})?|{UNDECIDED})\Z")
_RESET = "\x1b[0m"
# Parameters that only set colors and styles which leave text readable: those of the standard and the bright palette,
# the extended ones (38, 48, 58), and those with colons (4:3, a curly underline; 38:5:196; 38:2::255:0:0).
_STYLE = r"(?:0*(?:[0-4]|7|9|2[1-57-9]|3[0-79]|4[0-79]|53|55|59|9[0-7]|10[0-7]))?"
_COLOUR = r"0*[345]8(?:;5;[^;]*|;2;[^;]*;[^;]*;[^;]*|:[25](?::[0-9]*){0,5})"
_READABLE = re.compile(rf"(?:{_COLOUR}|4:[0-5]|{_STYLE})(?:;(?:{_COLOUR}|4:[0-5]|{_STYLE}))*")


class Inert:
    """Makes a stream of bytes inert, regardless of how it is split."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""  # the start of a possible SGR sequence, or part of an emoji
        self._before = ""  # the last text shown, if what follows may be kept only after it
        self._turned = False  # the last character was a carriage return, to which a following newline belongs
        self._styled = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to show now, from ``data`` and from earlier input that was held back."""
        return self._inert(self._decoder.decode(data)).encode("utf-8", "replace")

    def end(self) -> bytes:
        """Return the input that was held back, and a reset of any style."""
        rest = self._inert(self._decoder.decode(b"", final=True))
        rest += visible(self._before + self._unfinished)[len(self._before) :]
        self._unfinished = self._before = ""
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
        shown = len(self._before)
        text = self._before + self._unfinished + text
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._unfinished = text[cut:]
        before = re.search(rf"(?:{BEFORE})\Z", text[max(cut - 2, 0) : cut])
        self._before = before[0] if before else ""
        return _TOKEN.sub(self._replace_token, text[:cut])[shown:]

    def _replace_token(self, token: re.Match[str]) -> str:
        if token["turn"]:
            return "\n"
        sequence = token["sgr"]
        if sequence is None:
            return escape(token[0])
        if not _READABLE.fullmatch(sequence, 2, len(sequence) - 1):
            return escape("\x1b") + sequence[1:]
        self._styled = sequence not in ("\x1b[m", _RESET)
        return sequence
