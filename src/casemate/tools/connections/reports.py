"""What is said of one server when it cannot be used, and what it says itself without its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, ToolUnavailable
from casemate.tools.connections.answers import Answer
from casemate.tools.connections.last_words import LastWords, shortened
from casemate.visible import inert

if TYPE_CHECKING:
    from casemate.redaction.redaction import Redaction

_LONGEST_REASON = 2000  # characters
_MOST_CAUSES = 5
_NOT_SIGNED_IN = "HTTP 401"


class Reports:
    """Makes the errors of the server ``name``; nothing in them is a secret of its, or misleads a terminal."""

    def __init__(self, name: str) -> None:
        self._name = name

    def unavailable(
        self,
        why: str,
        reason: str,
        words: LastWords | None = None,
        redaction: Redaction | None = None,
        remediation: str = "",
    ) -> ToolUnavailable:
        """It cannot be used: ``why``, a stable code, and its last words."""
        said = words.text() if words is not None else ""
        text = f"{why}. It said last:\n{said}" if said else why
        clean = redaction.text(text) if redaction is not None else text
        return ToolUnavailable(
            self._name, f"the server {self._name!r}: {clean}", reason=reason, remediation=remediation
        )

    def closed(self) -> ToolUnavailable:
        """It is no longer one of ours."""
        return self.unavailable("it was removed, or all connections were closed", "closed")

    def failed(self, error: Exception, words: LastWords, redaction: Redaction | None) -> CasemateError:
        """It could not be connected because of ``error``, which may be a group of them."""
        causes = list(_causes(error))
        ours = [cause for cause in causes if isinstance(cause, CasemateError)]
        if ours:
            return ours[0]
        said = "; ".join(dict.fromkeys(_told(cause) for cause in causes[:_MOST_CAUSES]))
        told = shown(said, redaction)
        advice = ""
        if _NOT_SIGNED_IN in words.text():
            advice = "It wants to know who asks: give its definition 'auth', or 'headers' with a token."
        return self.unavailable(f"it could not be connected: {told}", "connect", words, redaction, advice)


def shown(text: str, redaction: Redaction | None) -> str:
    """A server's text for people: short, visible, without secrets."""
    clean = redaction.text(text) if redaction is not None else text
    return inert(shortened(clean, _LONGEST_REASON))


def redacted(answer: Answer, redaction: Redaction | None) -> Answer:
    """The answer without the secrets that its server was given."""
    if redaction is None:
        return answer
    structured = redaction.value(answer.structured) if answer.has_structured else answer.structured
    return Answer(redaction.value(answer.content), structured, answer.is_error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What went wrong, out of the groups that tasks put it in."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _told(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error)
    kind = type(error).__name__
    return text if kind == "MCPError" else f"{kind}: {text}" if text else kind
