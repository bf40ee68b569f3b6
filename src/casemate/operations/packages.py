"""``packages``: what programs of a session, or all later ones, can import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from casemate.api.options import Name, Names, Seconds
from casemate.model.caller import called_by
from casemate.model.operation import Audience, Principal, operation
from casemate.model.overview import Installed

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

Packaged = Literal["python", "node"]


@dataclass(frozen=True, slots=True)
class PackageVersion:
    """A package that is there."""

    name: str
    version: str


class Packages:
    """The packages of the desk's sandbox."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(audience=Audience.AGENT)
    async def install(
        self,
        packages: Names,
        *,
        language: Packaged = "python",
        session: Name | None = None,
        sources: bool = False,
        scripts: bool = False,
        upgrade: bool = False,
        timeout: Seconds | None = 300.0,  # noqa: ASYNC109 - the cell's, not the call's
        principal: Principal,
    ) -> Installed:
        """Install packages, and whatever they need, once somebody or a rule has allowed their files.

        ``packages``: requirements, such as "requests>=2", or "left-pad@1.3.0" of Node. ``language``: whose packages
        they are. ``session``: the handle or name of the session that is to have them; nothing for all later runs and
        sessions. ``sources``: also Python packages that must be built, which runs their code in a cell. ``scripts``:
        likewise the scripts of Node's packages for when they are installed. ``upgrade``: the newest that fit.
        ``timeout``: seconds for the cell that installs.
        """
        with called_by(principal.name):
            return await self._desk.sandbox.packages.install(
                packages, language=language, session=self._session(session, principal), sources=sources,
                scripts=scripts, upgrade=upgrade, timeout=timeout,
            )  # fmt: skip

    @operation(audience=Audience.AGENT)
    async def list(
        self, *, language: Packaged = "python", session: Name | None = None, principal: Principal
    ) -> list[PackageVersion]:
        """What was installed. ``language``: of which language. ``session``: of this session, by its handle or name;
        nothing for what all have."""
        found = await self._desk.sandbox.packages.list(language=language, session=self._session(session, principal))
        return [PackageVersion(one.name, one.version) for one in found]

    @operation()
    async def remove(
        self, packages: Names, *, language: Packaged = "python", session: Name | None = None, principal: Principal
    ) -> tuple[PackageVersion, ...]:
        """Take away what was installed; the answer is what was there. ``packages``: their names. ``language``: whose
        packages they are. ``session``: only from this session, by its handle or name."""
        of = self._session(session, principal)
        gone = await self._desk.sandbox.packages.remove(packages, language=language, session=of)
        return tuple(PackageVersion(*one) for one in gone)

    def _session(self, session: str | None, principal: Principal) -> str | None:
        return None if session is None else self._desk.sessions.find(session, principal).session.id
