"""A cell behind a link, as the rest of the wall sees it."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from casemate.isolation.native.frames import FrameReader
from casemate.isolation.wall import Ending, Sink, Stream

if TYPE_CHECKING:
    from casemate.isolation.native.link import Link


class RunningCell:
    """A cell behind a link.

    Without a ``sink`` it waits for its program; ``order`` and ``stdin`` then lead to its process.
    """

    def __init__(self, link: Link, cell_id: str, sink: Sink | None, pipes: dict[int, Stream | None]) -> None:
        self.id = cell_id
        self.sink = sink
        self.order = self.stdin = -1
        self.pipes = pipes  # descriptor to stream; None is the control pipe
        self.paused: set[int] = set()
        self.frames = FrameReader()
        self.future: Future[Ending] = Future()
        self.listening: Future[list[int]] = Future()
        self._link = link

    def kill(self, reason: str) -> None:
        self._link.send({"op": "kill", "id": self.id, "reason": reason})

    def resume(self) -> None:
        self._link.call(self._link.resume, self)

    def discard(self) -> None:
        """End a cell that waits and will not be used."""
        self.kill("closed")

    def close_ways_in(self) -> None:
        """Close what only a cell that waits has."""
        for fd in (self.order, self.stdin):
            if fd >= 0:
                os.close(fd)
        self.order = self.stdin = -1

    async def ended(self) -> Ending:
        import asyncio

        return await asyncio.shield(asyncio.wrap_future(self.future))


class Unlaunched(Exception):
    """A cell that could not be made: at which stage, with which errno, in the supervisor's words."""

    def __init__(self, stage: str, number: int, detail: str) -> None:
        super().__init__(f"{stage}: {detail}")
        self.stage = stage
        self.errno = number
        self.detail = detail


def ending_of(message: dict[str, Any], tree_fd: int) -> Ending:
    """How a cell ended, as the supervisor tells it."""
    return Ending(
        wait_status=message["main"],
        reason=message["reason"],
        seconds=message["seconds"],
        cpu_seconds=message["cpu"],
        peak_memory=message["peak"],
        tasks=message["tasks"],
        oom=message["oom"],
        space_left=message["space_left"],
        inodes_left=message["inodes_left"],
        tree_fd=tree_fd,
    )


def open_pipes(fds: dict[str, int]) -> dict[int, Stream | None]:
    """Fresh pipes for what a cell says: their ends for it are put into ``fds``, ours are given, by descriptor.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    pipes: dict[int, Stream | None] = {}
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    try:
        for name in (*streams, "control"):
            read, fds[name] = os.pipe()
            os.set_blocking(read, False)
            pipes[read] = next((stream for stream in streams if stream == name), None)
    except OSError:
        for fd in (*fds.values(), *pipes):
            os.close(fd)
        raise
    return pipes
