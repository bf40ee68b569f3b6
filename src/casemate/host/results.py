"""Results of `sandbox.host`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of a host command.

    Attributes:
        argv: Its words.
        program: The absolute path of the program.
        status: ``"ok"``, ``"failed"``, or ``"timeout"`` if casemate ended it.
        exit_code: 128 + N for death by signal N; None if casemate ended it.
        truncated: Whether output was cut.
        duration: In seconds.
    """

    argv: tuple[str, ...]
    program: str
    status: str
    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool
    duration: float

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """Whether a command may be run.

    Attributes:
        scope: ``"rule"``, ``"once"``, ``"agent"`` or ``"namespace"``: how far the permission goes.
        expires: In seconds since 1970; None for never.
        by: The rule or the channel that decided.
    """

    command: tuple[str, ...]
    allowed: bool
    scope: str
    expires: float | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class HostAccess:
    """What of the host is open.

    Attributes:
        folder: Where commands run; None if they are not open.
        allowed: Commands that policy rules allow, as patterns.
        approved: Commands for which an approver's grant is valid.
        blocked: Commands that policy rules deny, as patterns, and those with a standing denial by an approver.
        pending: Commands and files that wait for an answer.
        roots: Folders open for reading.
        writable: Folders open for writing, which needs an approval.
    """

    folder: str | None
    allowed: tuple[str, ...]
    approved: tuple[str, ...]
    blocked: tuple[str, ...]
    pending: tuple[str, ...]
    roots: tuple[str, ...]
    writable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostContent:
    """The content of a file: ``text`` if it is UTF-8, else ``base64``."""

    text: str | None
    base64: bytes | None


def content_of(data: bytes) -> HostContent:
    """Return ``data`` as text if it is UTF-8."""
    try:
        return HostContent(data.decode(), None)
    except UnicodeDecodeError:
        return HostContent(None, data)
