"""Everything casemate raises, as one tree.

A program that fails, a limit that it meets and a refusal by policy are *values* (an
:class:`casemate.Execution` with a status). What is raised is a bad argument, something
this machine lacks, or casemate's own fault:

    CasemateError
    ├── InvalidArgument        an argument is wrong; names it and says what would be right
    │   ├── UnknownArgument    there is no argument of that name
    │   └── NotFound           there is no session, run, file or operation of that name for whoever asks
    ├── Unavailable            this machine or installation cannot do it; says what would help
    │   ├── WallUnavailable    no wall can be proved here, or not the one asked for
    │   ├── RuntimeMissing     the interpreter for a language is not there
    │   ├── VaultUnavailable   the vault of secrets cannot be read or written, or is not as it was left
    │   ├── ToolUnavailable    a server of tools cannot be reached, has died, or does not answer
    │   └── WebUnavailable     a page cannot be had, or nothing could be searched
    ├── QueueFull              it could not begin: it says what was missing, and when to try again
    ├── ExecutionFailed        raised only by Execution.raise_for_status()
    ├── Denied                 whoever asks may not have this done
    ├── PlanDenied             a plan of calls was to be run that nobody has allowed
    ├── NotProved              a file, statement or pack was changed, or nobody who is trusted has signed it
    ├── RecordUnavailable      the audit record cannot be written, so nothing is run
    ├── SandboxClosed          the sandbox was closed before or while this ran
    └── Fault                  casemate's own failure; please report it

Each class has a ``kind``, a stable word that surfaces translate (exit code, HTTP status).
"""

from __future__ import annotations

from typing import Any, ClassVar


class CasemateError(Exception):
    """Base of everything casemate raises on purpose.

    ``message`` says what happened, to what and why; ``remediation`` what to do about it
    (empty when there is nothing to say).
    """

    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, remediation: str = "") -> None:
        super().__init__(message if not remediation else f"{message}\n{remediation}")
        self.message = message
        self.remediation = remediation


class InvalidArgument(CasemateError, ValueError):
    """An argument has a value that casemate cannot use; ``argument`` is its name, ``problem`` the message without
    that name."""

    kind = "invalid"

    def __init__(self, argument: str, message: str, *, remediation: str = "") -> None:
        super().__init__(f"{argument}: {message}", remediation=remediation)
        self.argument = argument
        self.problem = message


class UnknownArgument(InvalidArgument, TypeError):
    """There is no argument of that name; the message names all such, and what was probably meant by each."""


class NotFound(InvalidArgument):
    """There is nothing of that name for whoever asks: whether it is another's or nobody's is not told."""

    kind = "not_found"


class Denied(CasemateError):
    """Whoever asks may not have this done."""

    kind = "denied"


class Unavailable(CasemateError):
    """This machine or this installation cannot do what was asked."""

    kind = "unavailable"


class WallUnavailable(Unavailable):
    """A wall cannot be had here; ``reason`` is a stable code (see docs/explanation/walls.md)."""

    def __init__(self, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.reason = reason


class RuntimeMissing(Unavailable):
    """The interpreter that a language needs was not found; ``language`` names it."""

    def __init__(self, language: str, message: str, *, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.language = language


class VaultUnavailable(Unavailable):
    """The vault cannot be read or written, or was changed; ``reason`` is a stable code (docs/how-to/secrets.md)."""

    def __init__(self, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.reason = reason


class ToolUnavailable(Unavailable):
    """The MCP server ``server`` cannot be used or is silent; ``reason`` is a stable code (docs/how-to/servers.md)."""

    def __init__(self, server: str, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.server = server
        self.reason = reason


class WebUnavailable(Unavailable):
    """The page at ``url`` cannot be had, or nothing was searched; ``reason`` is a stable code (docs/how-to/web.md)."""

    def __init__(self, url: str, message: str, *, reason: str, remediation: str = "") -> None:
        super().__init__(message, remediation=remediation)
        self.url = url
        self.reason = reason


class QueueFull(CasemateError):
    """Nothing of it was begun. ``missing``: "turns" where as many go on and wait as may, or its turn did not come in
    time; "memory" or "processes" where the machine has none to spare. ``retry_after``: seconds after which there may be
    room."""

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
    """A plan was to be run that nobody has allowed; ``reason`` says why."""

    kind = "denied"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the plan was not allowed: {reason}",
            remediation="A rule of the policy can allow its calls, or an approver (in Python: approve).",
        )
        self.reason = reason


class NotProved(CasemateError):
    """A file, statement or pack is not what was signed, or nobody who is trusted has signed it."""

    kind = "not_proved"


class RecordUnavailable(CasemateError):
    """The audit record cannot be read or written; new runs are refused until it can."""

    kind = "record"


class SandboxClosed(CasemateError):
    """The sandbox was closed before the operation, or while it ran."""

    kind = "closed"


class Fault(CasemateError):
    """Casemate itself failed (not the program, not the caller)."""

    kind = "fault"
