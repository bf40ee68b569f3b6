"""``sandbox.packages``: what is installed for one session, or for all later runs and sessions of a sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.approvals.asker import Of
from casemate.errors import InvalidArgument, Unavailable
from casemate.execution.request import check_timeout
from casemate.model.packages import Installed, InstalledPackage, Terms
from casemate.packages.environments import Environments, key_of, own_folder
from casemate.packages.indexes import Index, Indexes, operators
from casemate.packages.layers import Layer, projects
from casemate.packages.names import normalized, requirement, requirements
from casemate.packages.store import Store, default_folder
from casemate.sessions.package_requests import PackageRequests

if TYPE_CHECKING:
    from casemate.approvals.asker import Asker
    from casemate.execution.house import House
    from casemate.packages.names import Requirement
    from casemate.sessions.registry import Sessions
    from casemate.sessions.session import Session

_MOST_FILE = 2 << 30  # bytes of one file that is fetched


class Packages:
    """The packages of a sandbox. See :attr:`casemate.Sandbox.packages`."""

    def __init__(
        self,
        house: House,
        namespace: str,
        sessions: Sessions,
        indexes: tuple[Index, ...],
        env: Mapping[str, str],
        wanted: tuple[Requirement, ...] = (),
    ) -> None:
        """``indexes``: those that the application has named; none, for the operator's own; ``env``: this process's
        variables; ``wanted``: what all cells are to have, from the first on."""
        self._house = house
        self._namespace = namespace
        self._sessions = sessions
        self._given = indexes
        self._env = env
        self._wanted = wanted
        self._prepared: tuple[InstalledPackage, ...] | None = None
        self._preparing: asyncio.Lock | None = None
        self._known: Indexes | None = None
        self._folder: Path | None = None
        self._layers: dict[str, Layer] = {}  # by session, "" for all cells
        self._turns: dict[str, asyncio.Lock] = {}
        self._offers = (PackageRequests(self),)

    async def install(
        self,
        packages: Sequence[str],
        *,
        language: str = "python",
        session: Session | str | None = None,
        sources: bool = False,
        upgrade: bool = False,
        timeout: float | None = 300.0,  # noqa: ASYNC109 - the cell's, not the call's
    ) -> Installed:
        """Install ``packages``, requirements such as ``"requests>=2"``, from the operator's index, and whatever they
        need that is not there.

        ``session``: only that session has them, at once; without one all later runs and sessions have. ``sources``:
        also packages that have to be built, which runs their code in the installing cell; else wheels alone.
        ``upgrade``: the newest that fit, also where others are there that fit. ``timeout``: seconds of the installing
        cell. The files are asked about, each with version, address and hash, as one question of kind ``package``,
        before anything can use them.

        That it was denied, or could not be, is a value. Raises ``InvalidArgument`` for what is no list of plain
        requirements, ``Unavailable`` where no index can be used, and what :meth:`casemate.Sandbox.run` raises.
        """
        _check_language(language)
        wanted = requirements(packages)
        for_whom = await self._session(session)
        seconds = check_timeout(timeout) or self._house.limits.wall
        await self.prepare()
        return await self._asked(wanted, for_whom, Terms(sources, upgrade, seconds))

    async def _asked(self, wanted: tuple[Requirement, ...], session: Session | None, terms: Terms) -> Installed:
        """What the application asks for."""
        approvals = self._house.approvals()
        if not approvals.may_ask("package", stream=False):
            return Installed("denied", reason="no rule allows packages, and there is nobody to ask")
        asker = approvals.asker(Of(self._namespace, session.id if session else None, os.urandom(16).hex()), None)
        try:
            return await self._install(wanted, session, asker, terms)
        finally:
            await asker.end()

    async def install_for(self, asker: Asker, packages: Sequence[str], *, upgrade: bool = False) -> Installed:
        """What code of a step asks for: the same for its session, asked by ``asker``. Raises likewise."""
        wanted = requirements(packages)
        if asker.session is None:
            return Installed("failed", reason="packages come into sessions, or into a sandbox ahead of its runs")
        session = await self._sessions.get(asker.session)
        if session.language != "python":
            return Installed(
                "failed", reason=f"packages come into Python sessions, and this is one of {session.language}"
            )
        if asker.stream is None and not self._house.approvals().may_ask("package", stream=False):
            return Installed("denied", reason="no rule allows packages, and there is nobody to ask")
        return await self._install(wanted, session, asker, Terms(False, upgrade, self._house.limits.wall))

    async def remove(
        self, packages: Sequence[str], *, language: str = "python", session: Session | str | None = None
    ) -> tuple[tuple[str, str], ...]:
        """Take away what was installed so: name and version of each that was there. Raises ``InvalidArgument``."""
        _check_language(language)
        names = {normalized(requirement(one).name) for one in packages}
        found = await self._session(session)
        key = found.id if found else ""
        async with self._turns.setdefault(key, asyncio.Lock()):
            layer = await self._layer(key)
            there = [one for one in projects(layer.current) if one[0] in names] if layer.current else []
            if there:
                await asyncio.to_thread(lambda: layer.publish(layer.begin(), {name for name, _ in there}))
                if found is not None:
                    await found.show_packages(str(layer.folder))
        return tuple(there)

    async def list(
        self, *, language: str = "python", session: Session | str | None = None
    ) -> tuple[InstalledPackage, ...]:
        """What was installed so, by name; what the environment has besides is not among it."""
        _check_language(language)
        found = await self._session(session)
        layer = self._layers.get(found.id if found else "") or self._layers.get("")
        if layer is None or layer.current is None:
            return ()
        there = await asyncio.to_thread(projects, layer.current)
        return tuple(InstalledPackage(name, version) for name, version in there)

    async def prepare(self) -> tuple[InstalledPackage, ...]:
        """Have the environment that the sandbox was asked for, if it was for one of requirements: what is in it. One
        that was made before comes from the user's cache; its files are asked about all the same.

        Raises ``Unavailable`` where it was denied or could not be made, and as :meth:`install`.
        """
        self._preparing = self._preparing or asyncio.Lock()
        async with self._preparing:
            if self._prepared is None:
                self._prepared = await self._environment() if self._wanted else ()
        return self._prepared

    async def _environment(self) -> tuple[InstalledPackage, ...]:
        from casemate.execution.install import permission

        kept = Environments(default_folder(self._env) / "environments")
        texts = [one.text for one in self._wanted]
        python = self._house.runtime_for("python").launch(self._house.environment, "main.py", ())
        executable = await asyncio.to_thread(os.path.realpath, python.argv[0])
        key = key_of(python.version, executable, *sorted(texts), *(one.url for one in self._given))
        found = await asyncio.to_thread(kept.find, key)
        if found is None:
            made = await self._asked(self._wanted, None, Terms(False, False, self._house.limits.wall))
            if not made.ok:
                raise Unavailable(
                    f"environment: {made.reason}", remediation="Look at the index, the rules or who is asked."
                )
            await asyncio.to_thread(kept.keep, key, await self._layer(""), texts, made.packages)
            return made.packages
        cached, packages = found
        asker = self._house.approvals().asker(Of(self._namespace, None, os.urandom(16).hex()), None)
        try:
            verdict = await permission(asker, texts, packages)
        finally:
            await asker.end()
        if not verdict.allow:
            raise Unavailable(f"environment: denied by {verdict.by}: {verdict.reason}")
        await asyncio.to_thread((await self._layer("")).begin_with, cached)
        return packages

    def offers(self) -> tuple[PackageRequests, ...]:
        """What programs of sessions ask with."""
        return self._offers

    def shared(self) -> Path | None:
        """The folder of what all cells see; None where nothing was installed for them."""
        layer = self._layers.get("")
        return layer.folder if layer is not None and layer.current is not None else None

    def close(self) -> None:
        """Remove all layers. The files that were fetched stay in the user's cache."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _install(
        self, wanted: tuple[Requirement, ...], session: Session | None, asker: Asker, terms: Terms
    ) -> Installed:
        from casemate.execution.install import Order, install
        from casemate.packages.gateway import Gateway
        from casemate.packages.upstream import Upstream

        key = session.id if session else ""
        async with self._turns.setdefault(key, asyncio.Lock()):
            layer = await self._layer(key)
            store = Store(default_folder(self._env) / "files")
            upstream = Upstream(await self._indexes(), store, _MOST_FILE)
            try:
                order = Order(wanted, terms, _uv(self._env), self._namespace)
                installed = await install(order, self._house, Gateway(upstream, store, terms.sources), layer, asker)
            finally:
                await upstream.close()
            if installed.ok and session is not None and layer.current is not None:
                await session.show_packages(str(layer.folder))
        return installed

    async def _indexes(self) -> Indexes:
        if self._given:
            return Indexes(self._given)
        if self._known is None:
            self._known = await asyncio.to_thread(operators, self._env)
        return self._known

    async def _layer(self, key: str) -> Layer:
        """That of a session begins with what all cells had when it was first installed into."""
        if self._folder is None:
            self._folder = await asyncio.to_thread(own_folder, default_folder(self._env))
        open_now = {session.id for session in await self._sessions.list()}
        for gone in [one for one in self._layers if one and one not in open_now]:
            self._turns.pop(gone, None)
            await asyncio.to_thread(self._layers.pop(gone).remove)
        if key not in self._layers:
            layer = Layer(self._folder / (key or "shared") / "python")
            shared = self._layers.get("")
            if shared is not None:
                await asyncio.to_thread(layer.begin_with, shared)
            self._layers[key] = layer
        return self._layers[key]

    async def _session(self, session: Session | str | None) -> Session | None:
        if session is None:
            return None
        found = await self._sessions.get(session if isinstance(session, str) else session.id)
        if found.language != "python":
            raise Unavailable(f"packages for sessions of {found.language} cannot be installed in this version")
        return found


def _check_language(language: str) -> None:
    if language in ("node", "javascript", "js", "nodejs"):
        raise Unavailable("packages for Node cannot be installed in this version")
    if language not in ("python", "py", "python3"):
        raise InvalidArgument("language", f"{language!r} has no packages that casemate installs; give 'python'")


def _uv(env: Mapping[str, str]) -> Path | None:
    """The host's uv: beside casemate's own interpreter, or where the operator's programs are."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=env.get("PATH", os.defpath))
    return Path(found) if found else None
