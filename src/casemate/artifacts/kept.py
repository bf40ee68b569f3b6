"""``sandbox.artifacts``: files that the last runs left, found by the run's id.

Whoever holds an ``Execution`` has its files for as long as that; others find them here while they are kept: the newest
runs, as many as fit. What is in memory and what is in files without a name counts alike, so that neither grows.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING

from casemate.errors import NotFound

if TYPE_CHECKING:
    from casemate.model.execution import Artifact, Execution

MOST_RUNS = 64  # with artifacts; each holds a descriptor at most for its files and one for its output
MOST_BYTES = 256 << 20  # of all of them


class Artifacts:
    """The newest ``runs`` that left any, of at most ``size`` bytes together; ``without``: the ids of those that left
    none. Used in one event loop."""

    def __init__(self, runs: int = MOST_RUNS, size: int = MOST_BYTES, without: Collection[str] = ()) -> None:
        self._most_runs, self._most_bytes = runs, size
        self._kept: OrderedDict[str, tuple[Artifact, ...]] = OrderedDict()
        self._bytes = 0
        self._without = without

    def keep(self, execution: Execution) -> None:
        """Those of a run that came to its end, and its full output; the oldest make room. Those of a run that has more
        than all of them may have are not kept."""
        named = {artifact.name: artifact for artifact in execution.artifacts}
        if execution.full_output is not None:
            named.setdefault(execution.full_output.name, execution.full_output)
        files = tuple(named.values())
        if not files or _size(files) > self._most_bytes:
            return
        self._kept[execution.id] = files
        self._bytes += _size(files)
        while len(self._kept) > self._most_runs or self._bytes > self._most_bytes:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    async def list(self, run: str) -> builtins.list[Artifact]:
        """The artifacts of a run or step of this sandbox, by its id, its full output among them where it was cut.

        Args:
            run: The id.

        Raises:
            NotFound: There was no such run, or its files are no longer kept.
        """
        return [*self._of(run)]

    async def read(self, run: str, name: str) -> bytes:
        """The bytes of one.

        Args:
            run: The id.
            name: As :meth:`list` has it.

        Raises:
            NotFound: As :meth:`list`, and where it left no such file.
            OSError: It cannot be read.
        """
        for artifact in self._of(run):
            if artifact.name == name:
                return await asyncio.to_thread(artifact.read_bytes)
        raise NotFound("name", f"this run left no {str(name)[:200]!r}")

    def close(self) -> None:
        """Give all of them up."""
        self._kept.clear()
        self._bytes = 0

    def _of(self, run: str) -> tuple[Artifact, ...]:
        files = self._kept.get(run, () if run in self._without else None)
        if files is None:
            raise NotFound(
                "run",
                f"no artifacts of {str(run)[:80]!r} are kept: there is no such run, or others came since",
                remediation=f"The newest {self._most_runs} runs with artifacts are kept, as far as they fit.",
            )
        return files


def _size(files: tuple[Artifact, ...]) -> int:
    return sum(artifact.size for artifact in files)
