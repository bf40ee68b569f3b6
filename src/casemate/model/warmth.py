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
    """Cells of one kind: how many are ``ready`` and ``running``, and how many were ``taken`` and ``made`` so far.

    ``preload``: of the zygote that they are forked from; None where they are executed.
    """

    language: str
    preload: tuple[str, ...] | None
    ready: int
    running: int
    taken: int
    made: int


@dataclass(frozen=True, slots=True)
class Warmth:
    """Everything that a sandbox keeps ready."""

    pools: tuple[PoolState, ...] = ()
    zygotes: tuple[ZygoteState, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way any more."""
        states = {zygote.preload: zygote.state for zygote in self.zygotes}
        return all(pool.ready or states.get(pool.preload or ()) == "ruled out" for pool in self.pools) and all(
            state in ("ready", "ruled out") for state in states.values()
        )
