"""``sandbox.artifacts``: the files of recent runs, by the run's id.

An ``Execution`` keeps its files while it exists. Other callers find them here while the run is among the newest and the
sizes fit. Bytes in memory and bytes in unlinked files both count, so neither grows without bound.
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

MOST_RUNS = 64  # with artifacts; each uses at most one descriptor for its files and one for its output
MOST_BYTES = 256 << 20  # of all runs together


class Artifacts:
    """The artifacts of the newest ``runs`` within ``size`` bytes. ``without``: ids of runs that left none.

    Use it in one event loop."""

    def __init__(self, runs: int = MOST_RUNS, size: int = MOST_BYTES, without: Collection[str] = ()) -> None:
        self._most_runs, self._most_bytes = runs, size
        self._kept: OrderedDict[str, tuple[Artifact, ...]] = OrderedDict()
        self._bytes = 0
        self._without = without

    def keep(self, execution: Execution) -> None:
        """Keep the files and full output of an ended run; not of one that alone is too large. Drops the oldest runs."""
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
        """The artifacts of a run or step. If its output was cut, the full output is among them.

        Args:
            run: The id of the run or step.

        Raises:
            NotFound: No such run, or its files are no longer kept.
        """
        return [*self._of(run)]

    async def read(self, run: str, name: str) -> bytes:
        """The bytes of one artifact.

        Args:
            run: The id of the run or step.
            name: The artifact's name, as in :meth:`list`.

        Raises:
            NotFound: No such run or artifact, or its files are no longer kept.
            OSError: The artifact cannot be read.
        """
        for artifact in self._of(run):
            if artifact.name == name:
                return await asyncio.to_thread(artifact.read_bytes)
        raise NotFound("name", f"this run left no {str(name)[:200]!r}")

    def close(self) -> None:
        """Drop all artifacts."""
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
