"""Opens a wall by its name, and chooses one.

The walls are those of `casemate.model.isolation.WALLS`. The wall ``name`` is the class ``NameWall`` in
``casemate.walls.name.wall``. ARCHITECTURE.md says what else to touch to add one.

The module imports nothing of casemate at the top, because the command line loads it first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from casemate.errors import WallUnavailable
    from casemate.model.isolation import IsolationReport
    from casemate.model.kinds import Strength
    from casemate.model.plan import Launch
    from casemate.walls.wall import Wall


def automatic() -> tuple[str, ...]:
    """The walls that "auto" tries, strongest first."""
    from casemate.model.isolation import WALLS

    return tuple(name for name, traits in WALLS.items() if traits.is_automatic)


def open_wall(
    name: str,
    launch_probe: Callable[[str, tuple[str, ...]], Launch],
    concurrency: int,
    at_least: Strength | None = None,
    containers: tuple[str | None, str | None] = (None, None),
) -> Wall:
    """Open the wall ``name``; "auto" is the strongest that passes its self-test. Refuses one weaker than ``at_least``.

    ``launch_probe`` returns how to start the self-test's Python programs. ``concurrency`` is the most cells at once,
    and bounds how many are kept ready. ``containers`` are the image and runtime of the docker wall. Raises
    ``InvalidArgument`` for an unknown name, and for ``containers`` with another wall.
    """
    from casemate.errors import InvalidArgument
    from casemate.model.isolation import WALLS

    takers = [wall for wall, traits in WALLS.items() if traits.takes_image]
    for argument, value in zip(("image", "runtime"), containers, strict=True):
        if value is not None and name not in takers:
            wanted = " or ".join(f"isolation={wall!r}" for wall in takers)
            raise InvalidArgument(argument, f"{value!r} is for cells in containers; give {wanted} with it")
    if name != "auto" and name not in WALLS:
        known = ", ".join(map(repr, ("auto", *WALLS)))
        raise InvalidArgument("isolation", f"{name!r} is not known; choose one of {known}")
    names = automatic() if name == "auto" else (name,)

    def open_named(wall: str) -> Wall:
        more = (containers,) if WALLS[wall].takes_image else ()
        return cast("Wall", _class_of(wall)(launch_probe, concurrency, *more))

    if name != "auto" and at_least is None:
        return open_named(name)
    return cast("Wall", StrongestWall(open_named, names, at_least))


def start_early() -> None:
    """Start the strongest wall's supervisor before the first sandbox needs it. It ends unused if none does."""
    from casemate.walls.native.spawn import start_early as start

    start()


def _class_of(name: str) -> Any:
    return getattr(import_module(f"casemate.walls.{name}.wall"), f"{name.capitalize()}Wall")


def _check_strength(name: str, strength: Strength, least: Strength) -> None:
    """Raise ``WallUnavailable`` for a wall weaker than ``least``."""
    from casemate.errors import WallUnavailable
    from casemate.model.isolation import STRENGTHS

    if STRENGTHS.index(strength) < STRENGTHS.index(least):
        raise WallUnavailable(
            f"The {name} wall is {strength} here, and the policy's isolation.at_least is {least}.",
            reason="too_weak",
            remediation="A kernel of its own: isolation docker with the runtime runsc (docs/how-to/docker.md).",
        )


class StrongestWall:
    """The first wall of ``names`` whose self-test passes and that is not weaker than ``at_least``. Until proved, it
    acts as the first of ``names``."""

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
        """Prove the walls in order. If none passes, raise the strongest wall's ``WallUnavailable``."""
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
        for wall in self._walls:
            await wall.close()
