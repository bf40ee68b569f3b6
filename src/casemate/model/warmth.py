"""What is kept ready, so that runs need not wait for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ZygoteState:
    """A warmed interpreter that cells are forked from.

    ``preload``: the modules it has loaded; ``state``: "wanted", "starting", "ready" or "ruled out", with the
    ``problem``; ``seconds``: what its start took; ``data``: bytes that its cells share with it.
    """

    preload: tuple[str, ...]
    state: str
    problem: str
    pid: int | None
    seconds: float | None
    data: int


@dataclass(frozen=True, slots=True)
class PoolState:
    """Cells of one kind: how many are ``ready`` or being made, and ``running``; and were ``taken`` and ``made`` so far.

    ``zygote``: what they are forked from; None where they are executed. ``idle``: none is wanted, because nothing ran
    for a while; ``problem``: why there are none any more.
    """

    language: str
    zygote: ZygoteState | None
    ready: int
    running: int
    taken: int
    made: int
    idle: bool = False
    problem: str = ""

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way."""
        return bool(self.ready or self.idle or self.problem or (self.zygote and self.zygote.state == "ruled out"))


@dataclass(frozen=True, slots=True)
class Warmth:
    """Everything that a sandbox keeps ready."""

    pools: tuple[PoolState, ...] = ()
    zygotes: tuple[ZygoteState, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way any more."""
        ended = ("ready", "ruled out")
        return all(pool.settled for pool in self.pools) and all(zygote.state in ended for zygote in self.zygotes)
