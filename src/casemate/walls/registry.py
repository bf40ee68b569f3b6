"""Every wall there is, strongest first. To add one: its folder, and its line in `WALLS`.

This module imports nothing else of casemate at its top: the command line loads it before all else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from casemate.errors import WallUnavailable
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Launch
    from casemate.walls.wall import Wall

# The probe order: each wall's name, and its class.
WALLS = {
    "native": "casemate.walls.native.wall:NativeWall",
}


def open_wall(name: str, launch_probe: Callable[[str, tuple[str, ...]], Launch], concurrency: int) -> Wall:
    """The wall ``name``; for "auto" the strongest that its self-test proves.

    ``launch_probe`` says how the self-test's programs, which are Python, are started; ``concurrency``: the most cells
    at once, for which others may be kept ready. Raises ``InvalidArgument`` for a name that no wall has.
    """
    if name != "auto" and name not in WALLS:
        from casemate.errors import InvalidArgument

        known = ", ".join(map(repr, ("auto", *WALLS)))
        raise InvalidArgument("isolation", f"{name!r} is not known; choose one of {known}")
    names = tuple(WALLS) if name == "auto" else (name,)
    walls = [cast("Wall", _class_of(wall)(launch_probe, concurrency)) for wall in names]
    return walls[0] if len(walls) == 1 else cast("Wall", StrongestWall(walls))


def start_early() -> None:
    """Start what the strongest wall needs, before anybody asks for it; harmless where nobody does."""
    from casemate.walls.native.spawn import start_early as start

    start()


def _class_of(name: str) -> Any:
    module, _, wall = WALLS[name].partition(":")
    return getattr(import_module(module), wall)


class StrongestWall:
    """The first of ``walls`` that its self-test proves; until then the first of all."""

    def __init__(self, walls: list[Wall]) -> None:
        self._walls = walls
        self._chosen = walls[0]
        self._is_proved = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)

    async def prove(self) -> IsolationReport:
        """As of `Wall`. Raises ``WallUnavailable``, the strongest wall's, where none can be had."""
        from casemate.errors import WallUnavailable

        if self._is_proved:
            return await self._chosen.prove()
        refusals: list[WallUnavailable] = []
        for wall in self._walls:
            try:
                report = await wall.prove()
            except WallUnavailable as error:
                refusals.append(error)
                continue
            self._chosen, self._is_proved = wall, True
            return report
        raise refusals[0]

    async def close(self) -> None:
        """End all of them."""
        for wall in self._walls:
            await wall.close()
