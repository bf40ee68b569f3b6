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
    "landlock": "casemate.walls.landlock.wall:LandlockWall",
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
    if name != "auto":
        return cast("Wall", _class_of(name)(launch_probe, concurrency))
    return cast("Wall", StrongestWall(lambda wall: cast("Wall", _class_of(wall)(launch_probe, concurrency))))


def start_early() -> None:
    """Start what the strongest wall needs, before anybody asks for it; harmless where nobody does."""
    from casemate.walls.native.spawn import start_early as start

    start()


def _class_of(name: str) -> Any:
    module, _, wall = WALLS[name].partition(":")
    return getattr(import_module(module), wall)


class StrongestWall:
    """The first wall that its self-test proves; until then the first of all."""

    def __init__(self, open_named: Callable[[str], Wall]) -> None:
        self._open_named = open_named
        self._walls = [open_named(next(iter(WALLS)))]
        self._is_proved = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._walls[-1], name)

    async def prove(self) -> IsolationReport:
        """As of `Wall`. Raises ``WallUnavailable``, the strongest wall's, where none can be had."""
        if self._is_proved:
            return await self._walls[-1].prove()
        from casemate.errors import WallUnavailable

        first: WallUnavailable | None = None
        for name in WALLS:
            wall = self._walls[0] if first is None else self._open_named(name)
            try:
                report = await wall.prove()
            except WallUnavailable as error:
                first = first or error
                if wall is not self._walls[0]:
                    await wall.close()
                continue
            if wall is not self._walls[0]:
                self._walls.append(wall)
            self._is_proved = True
            return report
        assert first is not None
        raise first

    async def close(self) -> None:
        """End all of them."""
        for wall in self._walls:
            await wall.close()
