"""The outcome of one execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from casemate.errors import ExecutionFailed
from casemate.model.artifact import Artifact
from casemate.model.crossing import Crossing
from casemate.model.isolation import IsolationReport
from casemate.model.result import Image, ProgramError, Result, images_of

Status = Literal["ok", "failed", "timeout", "out_of_memory", "killed", "cancelled", "denied"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Which limit, rule or caller made an execution end as it did, for programs and models.

    ``code`` is stable (``timeout``, ``memory_limit``, ``cpu_limit``, ``process_limit``,
    ``output_limit``, ``disk_limit``, ``inode_limit``, ``open_files_limit``, ``cancelled``, ``killed``,
    ``interpreter_ended``, ``denied``, ``service_stopped``); ``message`` names the limit and what was used;
    ``remediation`` says what would help; ``retryable``: whether the same code may well succeed when simply run again.
    """

    code: str
    message: str
    remediation: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What the whole cell used: seconds of cpu, peak bytes of memory, peak number of tasks (0 where not measured)."""

    cpu_seconds: float
    peak_memory: int
    processes: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was left behind and not handed out, or not written back, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of running some code. The program's failure is a value here, not an exception.

    ``exit_code``: the program's own; 128 + N when signal N ended it; None when casemate did.
    ``text``: all text in the order it came (stdout, stderr and the text of results), stripped.
    ``duration``: seconds from the cell's start to its end.
    ``skipped``: files that the run left and that were not handed out or not written back.
    ``crossings``: the hosts that it reached or tried to reach; what is beyond some hundred is told together.
    """

    id: str
    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    text: str
    results: tuple[Result, ...]
    error: ProgramError | None
    artifacts: tuple[Artifact, ...]
    full_output: Artifact | None
    truncated: bool
    usage: Usage
    duration: float
    cause: Cause | None
    isolation: IsolationReport
    skipped: tuple[SkippedFile, ...] = ()
    state: Literal["kept", "lost"] | None = None
    lost_names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    crossings: tuple[Crossing, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.status == "ok"

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures among ``results``."""
        return images_of(self.results)

    def raise_for_status(self) -> Self:
        """This execution if it is ``ok``. Raises :class:`casemate.ExecutionFailed`, which carries it, if not."""
        if not self.ok:
            raise ExecutionFailed(self)
        return self
