"""What a call can fail with."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ToolError(Exception):
    """A call that failed: the message says why. ``kind``: the reason in a word; ``content``: what the tool said."""

    kind = "tool"

    def __init__(self, message: str = "", content: "tuple[Any, ...]" = ()) -> None:
        super().__init__(message)
        self.content = list(content)


class ToolDenied(ToolError):
    """The call was not permitted, by a rule or by whoever was asked. The tool did not run."""

    kind = "denied"


class ToolUnavailable(ToolError):
    """There is no such tool, its server cannot be reached, or this run has no tools."""

    kind = "unavailable"


class ToolTimeout(ToolError):
    """The tool did not answer in time. It may have run."""

    kind = "timeout"


class InvalidArguments(ToolError, ValueError):
    """The arguments are not what the tool takes. The tool did not run."""

    kind = "invalid"


_KINDS = {"denied": ToolDenied, "unavailable": ToolUnavailable, "unknown": ToolUnavailable, "timeout": ToolTimeout,
          "invalid": InvalidArguments}  # fmt: skip


def error_of(answer: "dict[str, Any]") -> ToolError:
    """The exception for an answer that is no success."""
    kind, message, content = answer.get("kind"), answer.get("message"), answer.get("content")
    if content:
        from ._content import blocks_of

        said = blocks_of(content)
    else:
        said = []
    error = _KINDS.get(kind, ToolError)(str(message or kind or "the call failed"), tuple(said))  # type: ignore[arg-type]
    if isinstance(kind, str):
        error.kind = kind
    return error
