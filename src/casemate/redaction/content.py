"""A file's content on its way out: text without the secrets, and nothing of what is no text and holds one. Pure."""

from __future__ import annotations

import codecs

from casemate.redaction.redaction import Redaction

WITHHELD = "it holds a secret, and is no text that could be handed out without it"


class RedactedContent:
    """Takes a file piece by piece and gives what can be handed on of it, as long as it is not :attr:`withheld`."""

    def __init__(self, redaction: Redaction) -> None:
        self._stream = redaction.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_text = True

    def feed(self, data: bytes) -> bytes:
        """What can be handed on now."""
        self._look(data, final=False)
        return self._stream.feed(data)

    def finish(self) -> bytes:
        """The rest."""
        self._look(b"", final=True)
        return self._stream.finish()

    @property
    def withheld(self) -> str:
        """Why it must not be handed out, as far as it was seen; empty when it may."""
        return WITHHELD if self._stream.has_found and not self._is_text else ""

    def _look(self, data: bytes, *, final: bool) -> None:
        """Text is UTF-8 without NUL characters."""
        if self._is_text:
            try:
                self._is_text = "\0" not in self._decoder.decode(data, final)
            except UnicodeDecodeError:
                self._is_text = False
