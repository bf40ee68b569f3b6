"""All errors that casemate raises, as one tree.

A failing program, a reached limit and a denial by policy are *values* (an :class:`casemate.Execution` with a status).
Errors are a bad argument, something that this machine lacks, or casemate's own failure:

    CasemateError
    ├── InvalidArgument        an argument is wrong; names it and says what would be right
    │   ├── UnknownArgument    an argument with this name does not exist
    │   └── NotFound           the caller has no session, run, file or operation with this name
    ├── Unavailable            this machine or installation cannot do it; says what would help
    │   ├── WallUnavailable    no wall passes its self-tests here, or not the requested one
    │   ├── RuntimeMissing     the interpreter of a language was not found
    │   ├── VaultUnavailable   the vault of secrets cannot be read or written, or was changed
    │   ├── ToolUnavailable    an MCP server cannot be reached, has died, or does not answer
    │   └── WebUnavailable     a page could not be loaded, or a search failed
    ├── QueueFull              it could not start; says what was missing, and when to try again
    ├── ExecutionFailed        raised only by Execution.raise_for_status()
    ├── Denied                 the caller may not do this
    ├── PlanDenied             a plan of calls was not allowed, so it does not run
    ├── NotProved              a file, statement or pack was changed, or has no trusted signature
    ├── RecordUnavailable      the audit record cannot be written, so nothing runs
    ├── SandboxClosed          the sandbox was closed before or during the call
    └── Fault                  casemate's own failure; please report it

Each class has a ``kind``, a stable word that surfaces translate (exit code, HTTP status).
"""

from __future__ import annotations

from typing import Any, ClassVar


class CasemateError(Exception):
    """Base of all errors that casemate raises.

    ``message`` says what happened, to what and why; ``remediation`` says what to do about it, or is empty.
    """

    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, remediation: str = "") -> None:
        super().__init__(message if not remediation else f"{message}\n{remediation}")
        self.message = message
        self.remediation = remediation


class InvalidArgument(CasemateError, ValueError):
    """An argument has a wrong value. ``argument`` is its name, ``problem`` the message without that name."""

    kind = "invalid"

    def __init__(self, argument: str, message: str, *, remediation: str = "") -> None:
        super().__init__(f"{argument}: {message}", remediation=remediation)
        self.argument = argument
        self.problem = message


class UnknownArgument(InvalidArgument, TypeError):
    """Arguments with these names do not exist. The message names all of them, with a suggestion for each."""


class NotFound(InvalidArgument):
    """The caller has nothing with this name. The error does not say whether another caller has."""

    kind = "not_found"


class Denied(CasemateError):
    """The caller may not do this."""

    kind = "denied"


class Unavailable(CasemateError):
    """This machine or installation cannot do this."""

    kind = "unavailable"


class WallUnavailable(Unavailable):
    """A wall is not available here; ``reason`` is a stable code (see docs/explanation/walls.md)."""

    def __init__(self, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.reason = reason


class RuntimeMissing(Unavailable):
    """The interpreter of ``language`` was not found."""

    def __init__(self, language: str, message: str, *, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.language = language


class VaultUnavailable(Unavailable):
    """The vault cannot be read or written, or was changed; ``reason`` is a stable code (docs/how-to/secrets.md)."""

    def __init__(self, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.reason = reason


class ToolUnavailable(Unavailable):
    """The MCP server ``server`` is unavailable or silent; ``reason`` is a stable code (docs/how-to/servers.md)."""

    def __init__(self, server: str, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.server = server
        self.reason = reason


class WebUnavailable(Unavailable):
    """The page at ``url`` could not be loaded, or a search failed; ``reason`` is a stable code (docs/how-to/web.md)."""

    def __init__(self, url: str, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.url = url
        self.reason = reason


class QueueFull(CasemateError):
    """It did not start. ``missing``: "turns" if the queue is full or the wait for a slot took too long; "memory" or
    "processes" if the machine has none left. ``retry_after``: seconds after which it may work."""

    kind = "busy"

    def __init__(self, message: str, *, retry_after: float, remediation: str = "", missing: str = "turns") -> None:
        super().__init__(message, remediation=remediation or f"Try again in {retry_after:g} s.")
        self.retry_after = retry_after
        self.missing = missing


class ExecutionFailed(CasemateError):
    """The program did not end well; the whole outcome is in ``execution``."""

    kind = "failed"

    def __init__(self, execution: Any) -> None:  # an Execution, whose module imports this one
        cause = execution.cause.message if execution.cause else f"exit code {execution.exit_code}"
        super().__init__(f"execution {execution.id} ended as {execution.status!r}: {cause}")
        self.execution = execution


class PlanDenied(CasemateError):
    """A plan was not allowed, so it does not run; ``reason`` says why."""

    kind = "denied"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the plan was not allowed: {reason}",
            remediation="A rule of the policy can allow its calls, or an approver (in Python: approve).",
        )
        self.reason = reason


class NotProved(CasemateError):
    """A file, statement or pack differs from what was signed, or has no trusted signature."""

    kind = "not_proved"


class RecordUnavailable(CasemateError):
    """The audit record cannot be read or written. New runs are refused until it can."""

    kind = "record"


class SandboxClosed(CasemateError):
    """The sandbox was closed before or during the call."""

    kind = "closed"


class Fault(CasemateError):
    """Casemate itself failed (not the program, not the caller)."""

    kind = "fault"
