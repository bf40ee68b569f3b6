"""Errors about a server that cannot be used, and the last output of its process, both redacted.

The output is for the operator of the sandbox. It is in the error's remediation, which programs do not get.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, ToolUnavailable
from casemate.tools.connections.answers import Answer, ServerAnswer
from casemate.visible import inert, shorten, visible

if TYPE_CHECKING:
    from casemate.redaction.redaction import Redaction


_MOST_BYTES = 8 << 10
_MOST_LINES = 20
_MOST_NOTES = 3
_LONGEST_LINE = 500  # characters


class OutputTail:
    """The bounded end of a stream of bytes, with casemate's own notes."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._has_lost = False
        self.notes: deque[str] = deque(maxlen=_MOST_NOTES)

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._has_lost = self._has_lost or len(data) > _MOST_BYTES
        self._pieces.append(data[-_MOST_BYTES:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= _MOST_BYTES:
            self._size -= len(self._pieces.popleft())
            self._has_lost = True

    def note(self, line: str) -> None:
        """Add a line from casemate."""
        self.notes.append(line)
        self.add(f"\n[{line}]\n".encode(errors="replace"))

    def text(self) -> str:
        """The last lines, with control and formatting characters as codes."""
        lines = b"".join(self._pieces).decode(errors="replace").splitlines()
        kept = [shorten(visible(line.strip()), _LONGEST_LINE) for line in lines if line.strip()]
        return ("…" if self._has_lost else "") + "\n".join(kept[-_MOST_LINES:])


_LONGEST_REASON = 2000  # characters
_MOST_CAUSES = 5
_NOT_SIGNED_IN, _FORBIDDEN, _OF_THE_SERVER = 401, 403, 500  # statuses of HTTP


class Reports:
    """Makes the errors of the server ``name``. They hold no secrets of the server and no terminal escapes."""

    def __init__(self, name: str, *, signs_in: bool) -> None:
        """``signs_in``: the definition has ``auth``."""
        self._name = name
        self._signs_in = signs_in

    def unavailable(
        self,
        why: str,
        reason: str,
        words: OutputTail | None = None,
        redaction: Redaction | None = None,
        remediation: str = "",
    ) -> ToolUnavailable:
        """The server cannot be used. ``reason`` is a stable code; ``words`` its last output."""
        said = words.text() if words is not None else ""
        why = "; ".join((why, *(words.notes if words is not None else ())))
        advice = "\n".join(part for part in (remediation, f"Its last output:\n{said}" if said else "") if part)
        if redaction is not None:
            why, advice = redaction.text(why), redaction.text(advice)
        return ToolUnavailable(self._name, f"the server {self._name!r}: {why}", reason=reason, remediation=advice)

    def closed_error(self) -> ToolUnavailable:
        """The server was removed, or the sandbox closed."""
        return self.unavailable("it was removed, or all connections were closed", "closed")

    def answer_error(self, error: Exception, redaction: Redaction | None) -> ToolUnavailable:
        """The server's answer is malformed."""
        return self.unavailable(f"its answer is not valid MCP: {error}", "answer", None, redaction)

    def http_error(
        self, answer: ServerAnswer, said: str, redaction: Redaction | None, call: str = ""
    ) -> ToolUnavailable:
        """The HTTP request failed with the message ``said``. ``call``: the call that may have taken effect."""
        words = f": {clean_text(said, redaction)}" if said else ""
        doubt = f"; whether {call} took effect is not known" if call else ""
        if answer.outcome == "not sent":
            return self.unavailable(f"it was not reached, and nothing was sent{words}", "connect", None, redaction)
        if answer.outcome == "broken off":
            return self.unavailable(f"the connection broke off{words}{doubt}", "died", None, redaction)
        later = f" (Retry-After: {clean_text(answer.retry_after, redaction)})" if answer.retry_after else ""
        why = f"it answered with HTTP {answer.status}{later}{words}"
        if answer.status in (_NOT_SIGNED_IN, _FORBIDDEN):
            advice = "It needs authentication: give its definition 'auth', or 'headers' with a token."
            if self._signs_in:
                advice = "It does not accept the sign-in of its definition's 'auth': check the account and 'scope'."
            return self.unavailable(why, "sign-in", None, redaction, advice)
        return self.unavailable(why + doubt * (answer.status >= _OF_THE_SERVER), "answer", None, redaction)

    def connect_error(self, error: Exception, words: OutputTail, redaction: Redaction | None) -> CasemateError:
        """The server could not be connected because of ``error``, which may be an exception group."""
        from mcp.client.auth import OAuthFlowError

        causes = list(_causes(error))
        ours = [cause for cause in causes if isinstance(cause, CasemateError)]
        if ours:
            return ours[0]
        for cause in causes:
            if isinstance(cause, OAuthFlowError):
                return self.unavailable(f"its sign-in failed: {clean_text(str(cause), redaction)}", "sign-in")
            if answer := ServerAnswer.of(cause):
                return self.http_error(answer, _describe_error(cause), redaction)
        said = "; ".join(dict.fromkeys(_describe_error(cause) for cause in causes[:_MOST_CAUSES]))
        return self.unavailable(
            f"it could not be connected: {clean_text(said, redaction)}", "connect", words, redaction
        )


def clean_text(text: str, redaction: Redaction | None) -> str:
    """A server's text for people: short, visible, redacted."""
    clean = redaction.text(text) if redaction is not None else text
    return inert(shorten(clean, _LONGEST_REASON))


def redact_answer(answer: Answer, redaction: Redaction | None) -> Answer:
    """The answer without the server's secrets."""
    if redaction is None:
        return answer
    structured = redaction.value(answer.structured) if answer.has_structured else answer.structured
    return Answer(redaction.value(answer.content), structured, answer.is_error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _describe_error(error: BaseException) -> str:
    text = str(getattr(error, "message", error))
    kind = type(error).__name__
    return text if kind == "MCPError" else f"{kind}: {text}" if text else kind
