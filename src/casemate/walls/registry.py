"""Every wall there is, strongest first. To add one: its folder, and its line in `WALLS`.

This module imports nothing else of casemate at its top: the command line loads it before all else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from casemate.errors import WallUnavailable
    from casemate.model.isolation import IsolationReport, Strength
    from casemate.model.plan import Launch
    from casemate.walls.wall import Wall

# The probe order: each wall's name, and its class.
WALLS = {
    "native": "casemate.walls.native.wall:NativeWall",
    "landlock": "casemate.walls.landlock.wall:LandlockWall",
    "docker": "casemate.walls.docker.wall:DockerWall",
}
_ASKED_FOR = ("docker",)  # not "auto": an engine is there for something else


def open_wall(
    name: str,
    launch_probe: Callable[[str, tuple[str, ...]], Launch],
    concurrency: int,
    at_least: Strength | None = None,
    containers: tuple[str | None, str | None] = (None, None),
) -> Wall:
    """The wall ``name``; for "auto" the strongest that its self-test proves. ``at_least``: a weaker one is refused.

    ``launch_probe`` says how the self-test's programs, which are Python, are started; ``concurrency``: the most cells
    at once, for which others may be kept ready; ``containers``: image and runtime of those that are cells. Raises
    ``InvalidArgument`` for a name that no wall has, and where another wall is given ``containers``.
    """
    for argument, value in zip(("image", "runtime"), containers, strict=True):
        if value is not None and name != "docker":
            from casemate.errors import InvalidArgument

            raise InvalidArgument(argument, f"{value!r} is for cells in containers; give isolation='docker' with it")
    if name != "auto" and name not in WALLS:
        from casemate.errors import InvalidArgument

        known = ", ".join(map(repr, ("auto", *WALLS)))
        raise InvalidArgument("isolation", f"{name!r} is not known; choose one of {known}")
    names = tuple(wall for wall in WALLS if wall not in _ASKED_FOR) if name == "auto" else (name,)

    def open_named(wall: str) -> Wall:
        more = (containers,) if wall == "docker" else ()
        return cast("Wall", _class_of(wall)(launch_probe, concurrency, *more))

    if name != "auto" and at_least is None:
        return open_named(name)
    return cast("Wall", StrongestWall(open_named, names, at_least))


def start_early() -> None:
    """Start what the strongest wall needs, before anybody asks for it; harmless where nobody does."""
    from casemate.walls.native.spawn import start_early as start

    start()


def _class_of(name: str) -> Any:
    module, _, wall = WALLS[name].partition(":")
    return getattr(import_module(module), wall)


def _check_strength(name: str, strength: Strength, least: Strength) -> None:
    """Raises ``WallUnavailable`` for a wall that is weaker than ``least``."""
    from casemate.errors import WallUnavailable
    from casemate.model.isolation import STRENGTHS

    if STRENGTHS.index(strength) < STRENGTHS.index(least):
        raise WallUnavailable(
            f"The {name} wall is {strength} here, and the policy's isolation.at_least is {least}.",
            reason="too_weak",
            remediation="A kernel of its own: isolation docker with the runtime runsc (docs/how-to/docker.md).",
        )


class StrongestWall:
    """The first wall of ``names`` that its self-test proves and that is not weaker than ``at_least``; until then the
    first of all. ``refused``: as of `Wall`."""

    def __init__(
        self, open_named: Callable[[str], Wall], names: tuple[str, ...], at_least: Strength | None = None
    ) -> None:
        self._open_named, self._names, self._at_least = open_named, names, at_least
        self._walls = [open_named(names[0])]
        self._is_proved = False
        self.refused: list[tuple[str, WallUnavailable]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._walls[-1], name)

    async def prove(self) -> IsolationReport:
        """As of `Wall`. Raises ``WallUnavailable``, the strongest wall's, where none can be had."""
        if self._is_proved:
            return await self._walls[-1].prove()
        from casemate.errors import WallUnavailable

        self.refused = []
        for name in self._names:
            wall = self._open_named(name) if self.refused else self._walls[0]
            try:
                report = await wall.prove()
                if self._at_least is not None:
                    _check_strength(wall.name, report.strength, self._at_least)
            except WallUnavailable as error:
                self.refused.append((name, error))
                if wall is not self._walls[0]:
                    await wall.close()
                continue
            if wall is not self._walls[0]:
                self._walls.append(wall)
            self._is_proved = True
            return report
        raise self.refused[0][1]

    async def close(self) -> None:
        """End all of them."""
        for wall in self._walls:
            await wall.close()
