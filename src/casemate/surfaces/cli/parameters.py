"""Parameters that many commands have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from cyclopts import Parameter

Name = Annotated[str, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(negative=())]
Output = Annotated[Literal["text", "json"], Parameter(name=("--output", "--format"))]  # json: the answer, for programs
AsJson = Annotated[bool, Parameter(name="--json", negative=(), show=False)]  # what --output json was called before


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """How much a program may use. Sizes are numbers of bytes, or e.g. 512MiB.

    Parameters
    ----------
    memory
        All memory of it and its children together.
    cpus
        Cores that it may use at once.
    cpu_time
        Seconds of cpu that it may use.
    processes
        Processes and threads at once.
    disk
        Bytes that it may write in /workspace, /tmp and /dev/shm together.
    inodes
        Files and folders that it may make there.
    open_files
        Open files of each process.
    output_limit
        How much of stdout and of stderr an outcome has, head and tail.
    full_output
        How much it may write to stdout and stderr before it is ended.
    """

    memory: Annotated[str | None, Parameter(name=("--memory", "--ram"))] = None
    cpus: Annotated[float | None, Parameter(name=("--cpus", "--cpu"))] = None
    cpu_time: float | None = None
    processes: int | None = None
    disk: str | None = None
    inodes: int | None = None
    open_files: int | None = None
    output_limit: str | None = None
    full_output: str | None = None

    def given(self, **more: float | None) -> dict[str, Any]:
        """Those that were given, and ``more``, by the names of :class:`casemate.Limits`."""
        names = {"output_limit": "output"}
        said = {names.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in {**said, **more}.items() if value is not None}


NO_LIMITS = LimitOptions()
