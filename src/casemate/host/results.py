"""What `sandbox.host` gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostResult:
    """What came of a command of the host.

    Attributes:
        argv: Its words.
        program: The absolute path of what was started.
        status: ``"ok"``, ``"failed"``, or ``"timeout"`` where it was ended.
        exit_code: 128 + N for its death by signal N, None where casemate ended it.
        truncated: Whether more was printed than is here.
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
        expires: In seconds since 1970, None for never.
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
        folder: Where commands are run, None where none are.
        allowed: Commands that rules of the policy allow, as patterns.
        approved: Commands that somebody has allowed, and that hold still.
        blocked: Commands that rules deny, as patterns, and those that somebody has denied for longer than once.
        pending: Commands and files that wait for an answer.
        roots: Folders whose files may be read.
        writable: Those in which it may be asked to write.
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
    """Bytes of a file: as ``text`` where they are UTF-8, else in ``base64``."""

    text: str | None
    base64: bytes | None


def content_of(data: bytes) -> HostContent:
    """``data`` as text where it is UTF-8."""
    try:
        return HostContent(data.decode(), None)
    except UnicodeDecodeError:
        return HostContent(None, data)
