"""``sandbox.packages``: packages for one session, or for all later runs and sessions of a sandbox.

Programs of a session request them through ``pip`` and ``npm``: one line of JSON each way.

-> {"do": "install", "packages": ["six>=1"], "upgrade": false}     or {"do": "remove", "packages": ["six"]}
-> {"do": "install", "packages": ["ms@^2"], "language": "node"}    the same for Node packages
<- {"ok": true, "packages": [{"name": "six", "version": "1.17.0"}]}
<- {"ok": false, "kind": "denied" | "failed" | "invalid" | "unavailable", "message": "..."}
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from casemate.errors import CasemateError, Denied, InvalidArgument, Unavailable
from casemate.execution.request import check_timeout
from casemate.execution.threads import to_thread_to_end
from casemate.files.lines import LineClient, line_of, read_line, read_object, while_there
from casemate.languages.catalogue import runtime_for
from casemate.languages.node.runtime import npm_of
from casemate.languages.runtime import SYSTEM_PATH
from casemate.model.approval import Question
from casemate.model.call_options import Seconds
from casemate.model.kinds import Name, Names
from casemate.model.operation import Audience, OneOf, operation
from casemate.model.overview import Installed, InstalledPackage, InstallTerms
from casemate.model.plan import LAYERED, LAYERED_NODE
from casemate.packages.indexes import Index, Indexes, read_npm_registries, read_pip_indexes
from casemate.packages.names import hashes_of, node_requirements, normalize, requirements
from casemate.packages.package_sets import (
    Environments,
    NodePackageSet,
    PackageSet,
    key_of,
    make_own_folder,
)
from casemate.packages.store import PackageStore, default_folder
from casemate.policy.rules import PACKAGE_LANGUAGES

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.execution.context import ExecutionContext
    from casemate.files.temporary import TemporaryFolder
    from casemate.languages.node.installer import NodeInstaller
    from casemate.languages.python.installer import PythonInstaller
    from casemate.packages.names import Requirement
    from casemate.sessions.registry import Sessions
    from casemate.sessions.session import Session


_MOST_LINE = 1 << 17  # bytes, mostly hashes
_MOST_MESSAGE = 4000  # characters
_REQUEST_WITHIN = 15.0  # seconds to send the request


@dataclass(frozen=True, slots=True)
class PackageService:
    """The package service of one cell. ``whose`` returns the requester of the running step."""

    packages: Packages
    whose: Callable[[], Requester | None]
    name: str = "packages.casemate.internal"
    port: int = 81

    async def serve(self, client: LineClient) -> None:
        """Answer one request. It is cancelled when its client leaves."""
        try:
            async with asyncio.timeout(_REQUEST_WITHIN):
                line = await read_line(client, _MOST_LINE)
        except InvalidArgument:  # the line is too long
            return
        answer = None if line is None else await while_there(client, self._answer(line))
        if answer is not None:
            await client.send(line_of(answer))

    async def _answer(self, line: bytes) -> dict[str, Any]:
        requester = self.whose()
        if requester is None:
            return _no("denied", "no step runs in this session that could install packages")
        try:
            work = self._work(line, requester)
        except InvalidArgument as error:
            return _no("invalid", str(error))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, requester.loop))

    def _work(self, line: bytes, requester: Requester) -> Coroutine[Any, Any, dict[str, Any]]:
        asked = read_object(line)
        names = asked.get("packages")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidArgument("packages", "the request is not understood")
        language = "node" if asked.get("language") == "node" else "python"
        if asked.get("do") == "install":
            return self._install(names, requester, language, upgrade=asked.get("upgrade") is True)
        if asked.get("do") == "remove":
            return self._remove(names, requester, language)
        raise InvalidArgument("packages", "the request is not understood")

    async def _install(self, names: list[str], requester: Requester, language: str, *, upgrade: bool) -> dict[str, Any]:
        try:
            installed = await self.packages.install_for(requester, names, upgrade=upgrade, language=language)
        except CasemateError as error:
            return _no("invalid" if isinstance(error, InvalidArgument) else "unavailable", str(error))
        if not installed.ok:
            return _no(installed.status, installed.reason)
        return {"ok": True, "packages": [{"name": one.name, "version": one.version} for one in installed.packages]}

    async def _remove(self, names: list[str], requester: Requester, language: str) -> dict[str, Any]:
        with contextlib.suppress(CasemateError):
            there = await self.packages.remove(names, language=language, session=requester.session)
            return {"ok": True, "packages": [{"name": name, "version": version} for name, version in there]}
        return _no("invalid", "only packages installed into this session can be removed, by name")


def _no(kind: str, message: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "message": message[:_MOST_MESSAGE]}


_MOST_FILE = 2 << 30  # bytes of one downloaded file
_PLACES = {"python": LAYERED, "node": LAYERED_NODE}
_READ = {"python": requirements, "node": node_requirements}


Packaged = Annotated[str, OneOf(PACKAGE_LANGUAGES)]


class PackageVersion(NamedTuple):
    name: str
    version: str


def _versions_of(packages: tuple[InstalledPackage, ...]) -> list[PackageVersion]:
    return [PackageVersion(one.name, one.version) for one in packages]


class Packages:
    """The packages of a sandbox. See :attr:`casemate.Sandbox.packages`."""

    def __init__(
        self,
        context: ExecutionContext,
        namespace: str,
        sessions: Sessions,
        indexes: tuple[Index, ...],
        env: Mapping[str, str],
        wanted: tuple[Requirement, ...] = (),
    ) -> None:
        """``indexes`` are those that the application names; if empty, the operator's are used. ``env`` holds this
        process's variables. ``wanted`` are the packages of all cells from the start."""
        self._context = context
        self._namespace = namespace
        self._sessions = sessions
        self._given = indexes
        self._env = env
        self._wanted = wanted
        self.report: Callable[[int], None] | None = None  # gets the bytes downloaded so far, from any thread
        self._prepared: tuple[InstalledPackage, ...] | None = None
        self._preparing: asyncio.Lock | None = None
        self._known: Indexes | None = None
        self._registries: Indexes | None = None
        self._folder: TemporaryFolder | None = None
        self._package_sets: dict[
            tuple[str, str], PackageSet | NodePackageSet
        ] = {}  # by language and session, "" for all cells
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}

    @operation(audience=Audience.AGENT)
    async def install(
        self,
        packages: Names,
        *,
        language: Packaged = "python",
        session: Session | Name | None = None,
        sources: bool = False,
        scripts: bool = False,
        upgrade: bool = False,
        timeout: Seconds | None = 300.0,  # noqa: ASYNC109 - the cell's, not the call's
    ) -> Installed:
        """Install ``packages``, such as ``"requests>=2"``, or ``"left-pad@1.3.0"`` with ``language="node"``, and their
        missing dependencies, from the operator's index or registry. Python requirements may end with one or more
        ``--hash=sha256:...``; then only files with one of these hashes are accepted for their project.

        One approval request of kind ``package`` lists all files, each with version, address and hash, before anything
        can use them.

        A denial or a failed installation is returned, not raised.

        Args:
            packages: Requirements.
            language: Whose packages they are.
            session: Install into this session alone, at once; without it, for all later runs and sessions.
            sources: Also accept Python packages that must be built, which runs their code in the installing cell. By
                default only wheels are accepted.
            scripts: Run the install scripts of Node packages in the installing cell. By default none runs.
            upgrade: Install the newest matching versions, even if installed ones match.
            timeout: Seconds that the installing cell may take.

        Raises:
            InvalidArgument: They are not a list of plain requirements.
            Unavailable: No index can be used.
            CasemateError: See :meth:`casemate.Sandbox.run`.
        """
        language = self._language(language)
        if (scripts and language == "python") or (sources and language == "node"):
            raise InvalidArgument(
                "scripts" if scripts else "sources", "use sources for Python packages and scripts for Node packages"
            )
        wanted = _READ[language](packages)
        for_whom = await self._session(session, language)
        wall = self._context.limits.wall
        seconds = min(check_timeout(timeout) or wall, wall)
        await self.prepare()
        return await self._request_install(
            wanted, for_whom, InstallTerms(sources or scripts, upgrade, seconds), language
        )

    async def _request_install(
        self, wanted: tuple[Requirement, ...], session: Session | None, terms: InstallTerms, language: str = "python"
    ) -> Installed:
        approvals = self._context.approvals()
        async with approvals.open_requester(self._namespace, session.id if session else None) as requester:
            if not approvals.may_ask("package", stream=False):
                return await _refuse_install(requester, wanted, language)
            return await self._install(wanted, session, requester, terms, language)

    async def install_for(
        self, requester: Requester, packages: Sequence[str], *, upgrade: bool = False, language: str = "python"
    ) -> Installed:
        """Install on request of a step's code, for its session, through ``requester``. Raises as :meth:`install`."""
        wanted = _READ[language](packages)
        if requester.session is None:
            return Installed("failed", reason="install packages into a session, or into a sandbox before its runs")
        session = await self._session(requester.session, language)
        if requester.stream is None and not self._context.approvals().may_ask("package", stream=False):
            return await _refuse_install(requester, wanted, language)
        return await self._install(
            wanted, session, requester, InstallTerms(False, upgrade, self._context.limits.wall), language
        )

    @operation()
    async def remove(
        self, packages: Names, *, language: Packaged = "python", session: Session | Name | None = None
    ) -> tuple[PackageVersion, ...]:
        """Remove installed packages. Returns the name and version of each.

        Args:
            packages: Their names.
            language: Whose packages they are.
            session: Remove only from this session.

        Raises:
            InvalidArgument: An argument cannot be used.
        """
        language = self._language(language)
        names = {_READ[language]([one])[0].name for one in packages}
        names = {normalize(name) for name in names} if language == "python" else names
        found = await self._session(session, language)
        key = (language, found.id if found else "")
        async with self._turns.setdefault(key, asyncio.Lock()):
            package_set = await self._package_set(*key)
            there = [one for one in package_set.list_installed() if one[0] in names]
            if there:
                await to_thread_to_end(package_set.remove_packages, {name for name, _ in there})
                if found is not None:
                    await found.show_packages(str(package_set.folder), _PLACES[language])
        return tuple(PackageVersion(*one) for one in there)

    @operation(audience=Audience.AGENT, gives=_versions_of)
    async def list(
        self, *, language: Packaged = "python", session: Session | Name | None = None
    ) -> tuple[InstalledPackage, ...]:
        """List the installed packages by name, without those of the environment.

        Args:
            language: Whose packages they are.
            session: List those of this session; without it, those of all.
        """
        language = self._language(language)
        found = await self._session(session, language)
        package_set = self._package_sets.get((language, found.id if found else "")) or self._package_sets.get(
            (language, "")
        )
        there = [] if package_set is None else await asyncio.to_thread(package_set.list_installed)
        return tuple(InstalledPackage(name, version) for name, version in there)

    async def prepare(self) -> tuple[InstalledPackage, ...]:
        """Prepare the sandbox's environment, if it was requested as a list of requirements. Returns its packages.

        An environment made before comes from the user's cache, but its files need approval again.

        Raises:
            Denied: It was denied.
            Unavailable: It could not be made.
            CasemateError: See :meth:`install`.
        """
        self._preparing = self._preparing or asyncio.Lock()
        async with self._preparing:
            if self._prepared is None:
                self._prepared = await self._environment() if self._wanted else ()
        return self._prepared

    async def _environment(self) -> tuple[InstalledPackage, ...]:
        made = await self.install_kept(self._wanted)
        if not made.ok:
            error = Denied if made.status == "denied" else Unavailable
            raise error(f"environment: {made.reason}", remediation="Check the index, the rules and the approver.")
        return made.packages

    async def install_kept(self, wanted: tuple[Requirement, ...]) -> Installed:
        """Install Python packages for all cells of a sandbox that has none yet. If the same list was installed before,
        they come from the user's cache. Raises as :meth:`install`."""
        from casemate.execution.install import permission

        kept = Environments(default_folder(self._env) / "environments")
        texts = [one.text for one in wanted]
        # The shebang lines of installed programs contain the interpreter's path.
        python = runtime_for("python").launch(self._context.environment, "main.py", ())
        hashes = sorted(f"{one.name} {digest}" for one in wanted for digest in one.hashes)
        indexes = [one.url for one in (await self._python_indexes()).indexes]
        key = key_of([python.version, python.argv[0]], sorted(texts), hashes, indexes)
        found = await asyncio.to_thread(kept.find, key) if self._has_hosts_programs else None
        package_set = await self._package_set("python", "")
        assert isinstance(package_set, PackageSet)
        if found is None:
            made = await self._request_install(wanted, None, InstallTerms(False, False, self._context.limits.wall))
            if made.ok and self._has_hosts_programs:
                await asyncio.to_thread(kept.keep, key, package_set, texts, made.packages)
            return made
        cached, packages = found
        async with self._context.approvals().open_requester(self._namespace) as requester:
            verdict = await permission(requester, texts, packages, PackageStore(default_folder(self._env) / "files"))
        if not verdict.allow:
            return Installed("denied", reason=verdict.reason or "it was asked for and not approved")
        await asyncio.to_thread(package_set.begin_with, cached)
        return Installed("installed", packages)

    def begin(self, whose: Callable[[], Requester | None]) -> PackageService:
        """Return the package service of a session's programs; see :class:`casemate.execution.network.Offer`."""
        return PackageService(self, whose)

    def shared_folders(self) -> tuple[tuple[Path, str], ...]:
        """Return the folders that all cells see, with their paths in the cell."""
        package_sets = ((self._package_sets.get((language, "")), place) for language, place in _PLACES.items())
        return tuple(
            (package_set.folder, place)
            for package_set, place in package_sets
            if package_set is not None and package_set.current
        )

    def close(self) -> None:
        """Remove all package sets. Downloaded files stay in the user's cache."""
        if self._folder is not None:
            self._folder.remove()

    async def _install(
        self,
        wanted: tuple[Requirement, ...],
        session: Session | None,
        requester: Requester,
        terms: InstallTerms,
        language: str,
    ) -> Installed:
        from casemate.execution.install import Order, install
        from casemate.packages.gateway import Gateway, Registry
        from casemate.packages.upstream import Upstream

        key = (language, session.id if session else "")
        context = self._context
        if session is not None and session.language == "shell" and language == "python":
            context = replace(context, environment=await asyncio.to_thread(_of_shell, context))
        async with self._turns.setdefault(key, asyncio.Lock()):
            package_set = await self._package_set(*key)
            installer, indexes = await self._installer(package_set)
            store = PackageStore(default_folder(self._env) / "files")
            upstream = Upstream(indexes, store, _MOST_FILE, self.report)
            kind = (
                partial(Gateway, hashes=hashes_of(wanted))
                if language == "python"
                else partial(Registry, address=installer.host)
            )
            try:
                order = Order(wanted, terms, installer, self._namespace)
                installed = await install(order, context, kind(upstream, terms.sources), requester)
            finally:
                await upstream.close()
            if installed.ok and session is not None and package_set.current is not None:
                await session.show_packages(str(package_set.folder), _PLACES[language])
        return installed

    async def _installer(
        self, package_set: PackageSet | NodePackageSet
    ) -> tuple[PythonInstaller | NodeInstaller, Indexes]:
        from casemate.languages.node.installer import NodeInstaller
        from casemate.languages.python.installer import PythonInstaller, find_uv

        wall = self._context.wall
        if isinstance(package_set, PackageSet):
            uv = find_uv(self._env) if self._has_hosts_programs else Path("uv")
            return PythonInstaller(package_set, uv, wall.host_address), await self._python_indexes()
        node = runtime_for("node")
        program = await asyncio.to_thread(lambda: node.launch(None, node.default_name, ()).argv[0])
        npm = await asyncio.to_thread(npm_of, program)
        if self._registries is None:
            self._registries = await asyncio.to_thread(read_npm_registries, (program, str(npm)), self._env)
        npm_there = npm if self._has_hosts_programs else None
        return NodeInstaller(package_set, npm_there, wall.host_address), self._registries

    @property
    def _has_hosts_programs(self) -> bool:
        """Whether cells use this machine's interpreters and installers, not an image's."""
        return bool(self._context.wall.system_entries())

    async def _python_indexes(self) -> Indexes:
        if self._known is None:
            self._known = Indexes(self._given) if self._given else await asyncio.to_thread(read_pip_indexes, self._env)
        return self._known

    async def _package_set(self, language: str, session: str) -> PackageSet | NodePackageSet:
        """Return the package set of a session, or with "" of all cells. A session's starts as a copy of that."""
        if self._folder is None:
            self._folder = await asyncio.to_thread(make_own_folder, default_folder(self._env))
        open_now = {session.id for session in await self._sessions.list()}
        for gone in [one for one in self._package_sets if one[1] and one[1] not in open_now]:
            self._turns.pop(gone, None)
            await asyncio.to_thread(self._package_sets.pop(gone).remove)
        key = (language, session)
        if key not in self._package_sets:
            folder = self._folder.path / (session or "shared") / language
            package_set = PackageSet(folder) if language == "python" else NodePackageSet(folder)
            for_all = self._package_sets.get((language, ""))
            if for_all is not None:
                await asyncio.to_thread(package_set.begin_with, for_all)
            self._package_sets[key] = package_set
        return self._package_sets[key]

    def _language(self, name: str) -> str:
        language = runtime_for(name).language
        if language not in PACKAGE_LANGUAGES:
            known = " or ".join(map(repr, PACKAGE_LANGUAGES))
            raise InvalidArgument("language", f"casemate installs no packages for {name!r}; use {known}")
        return language

    async def _session(self, session: Session | str | None, language: str) -> Session | None:
        if session is None:
            return None
        found = await self._sessions.get(session if isinstance(session, str) else session.id)
        if found.language not in (language, "shell"):
            raise Unavailable(f"packages of {language} can only be installed into sessions of {language} or Shell")
        return found


def _of_shell(context: ExecutionContext) -> str:
    """Return the Python of Shell programs. Its version must match the environment's Python. Raises ``Unavailable``."""
    runtime = runtime_for("python")
    found = shutil.which("python3", path=SYSTEM_PATH)
    wanted = runtime.launch(context.environment, runtime.default_name, ()).version.split(".")[:2]
    if found is not None and runtime.launch(found, runtime.default_name, ()).version.split(".")[:2] == wanted:
        return found
    raise Unavailable(
        f"programs of Shell have {'another Python' if found else 'no Python'}, and the environment's is "
        f"{'.'.join(wanted)}: packages for one do not suit the other",
        remediation="Use a Python session for Python packages.",
    )


async def _refuse_install(requester: Requester, wanted: tuple[Requirement, ...], language: str) -> Installed:
    """Deny an installation that no approver can allow, without a lookup. The request is still recorded."""
    names = [one.text for one in wanted]
    asked = Question("package", f"install {', '.join(names)}", {"packages": names, "language": language})
    verdict = await asyncio.wrap_future(requester.decide(asked))
    return Installed("denied", reason=verdict.reason)
