"""A host command behind a wall: for ``casemate wrap``, and for untrusted tool servers.

This combines the parts of a sandbox for a command, as ``sandbox.py`` does for programs. A command runs as long as it
likes, uses the caller's pipes, works in a folder that other processes use too, and sees that folder at its own path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from casemate.api.arguments import check_namespace, checked_folder, open_log, opened_store
from casemate.api.options import SandboxOptions
from casemate.api.policy_options import Bounded, bound_by_policy, check_seen, rulebook
from casemate.errors import InvalidArgument
from casemate.execution import wrapped
from casemate.execution.context import ExecutionContext, Folder
from casemate.execution.guarding import look
from casemate.execution.network import SandboxNetwork
from casemate.execution.request import make_command
from casemate.languages import commands
from casemate.languages.catalogue import launch_probe
from casemate.languages.places import homes, is_inside, is_system, too_wide
from casemate.model.isolation import STRENGTHS
from casemate.model.limits import COMMAND_LIMITS
from casemate.model.options import complete
from casemate.model.plan import HOME, NO_SECRETS, Entry, MountPoint, Plan, Secrets, Shown, Workspace
from casemate.policy.globs import is_pattern
from casemate.walls.registry import open_wall
from casemate.walls.wall import Cell, Standard
from casemate.workspace.guarding import GuardedPaths, Watched

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.execution.admit import AdmittedRequest
    from casemate.model.execution import Execution
    from casemate.model.kinds import Strength
    from casemate.policy.policy import Policy

_OF_THE_CELL = ("/proc", "/sys", "/dev", "/etc", "/program", "/run")  # no host folders go in there
_ROOTS = ("/tmp", "/var/tmp", "/home", "/opt", "/var", "/home/user")  # no host folder goes at these paths


@dataclass(frozen=True)
class WrapRequest:
    command: str
    arguments: tuple[str, ...] = ()
    # Options of :class:`casemate.Sandbox`. Default workspace: the one in the policy, or `cwd`. Default mode: direct.
    options: Mapping[str, Any] = field(default_factory=dict)
    shown: tuple[str, ...] = ()  # more files and folders that it may read
    copied: tuple[str, ...] = ()  # folders that it may also write to; its changes are discarded
    hidden: tuple[str, ...] = ()  # paths and patterns that it does not see
    at_least: Strength | None = None  # the weakest acceptable wall
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    timeout: float | None = None  # seconds; None for no end
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)  # its PATH is searched for commands
    cwd: str = "/"


class Wrapping:
    """One command, ready to start. Raises ``InvalidArgument``. Making it starts nothing."""

    def __init__(self, request: WrapRequest) -> None:
        options = complete(SandboxOptions, request.options, "wrap")
        bound = _with_hidden(request.hidden, bound_by_policy(options, wraps=True))
        least = [one for one in (bound.policy.at_least, request.at_least) if one is not None]
        containers = options["image"], options["runtime"]
        at_least = max(least, key=STRENGTHS.index, default=None)
        self._wall = open_wall(bound.isolation, launch_probe, 1, at_least, containers)
        self._namespace, self._vault = options["namespace"], options["vault"]
        check_namespace(self._namespace)
        self._asked = request
        self._policy = bound.policy
        self.full_output: int | None = bound.policy.limits.get("full_output")
        self._longest: float | None = bound.policy.limits.get("wall")
        self.folder = _folder(bound.workspace or request.cwd)
        self.mode: Literal["overlay", "direct"] = "direct" if bound.workspace_mode == "direct" else "overlay"
        self.writable = bound.policy.writable
        self._log = open_log(options)
        self._approvals: Approvals | None = None
        self._context = ExecutionContext(
            wall=self._wall, log=self._log, approvals=self._get_approvals, limits=bound.limits,
            environment=None, preload=(), folder=Folder(self.folder, self.mode),
            sandbox_network=SandboxNetwork(bound.policy.requests, bound.intercept, bound.trust),
            hosts=bound.hosts,
        )  # fmt: skip
        self._copied = tuple(_readable(str(Path(request.cwd, path)), "copy") for path in request.copied)
        paths = (*(path for path, _ in bound.policy.shown), *(str(Path(request.cwd, path)) for path in request.shown))
        self._guard = bound._replace(seen=tuple(path for path in paths if not is_pattern(path))).guard(is_wrapped=True)
        self._context = replace(self._context, folder=Folder(self.folder, self.mode, guard=self._guard))
        self._named = paths
        self._found = GuardedPaths()
        self._held: Secrets | None = None
        self._watched = Watched()

    def warm_up(self) -> None:
        """Start the supervisor without waiting for it. Raises ``Unavailable``."""
        self._wall.warm_up()

    def where_bound(self, name: str) -> str:
        """Where the policy sets the limit ``name`` in force; empty if it does not."""
        return self._policy.where_bound(name, getattr(self._context.limits, name))

    def find_missing(self) -> list[str]:
        """Files of the folder that the policy hides or protects, and that do not exist: they are not guarded."""
        return list(self._guard.find_missing(self.folder))

    async def execute(self, standard: Standard, started: Callable[[Cell], None]) -> Execution:
        """Run the command to its end; see :func:`casemate.execution.wrapped.execute`."""
        made, within = self._make(await self.secrets())
        self._watched.add(self.folder, made.workspace.hidden)
        for one in made.shown:
            self._watched.add(Path(one.source), one.hidden)
        try:
            return await wrapped.execute(
                made, within, self._context, standard, lambda begun: started(begun.cell), self.find_new_names
            )
        except InvalidArgument as error:
            if error.argument != "environment":
                raise
            why = error.problem.removeprefix("its interpreter ")
            raise InvalidArgument("command", f"{made.request.program_name!r}: {why}") from None

    async def explain(self) -> Plan:
        """The plan. This starts nothing."""
        made, within = self._make(await self.secrets())
        return wrapped.plan_of(made, within, self._context, self._context.sandbox_network.interception_for(within))

    def find_uncovered(self) -> str:
        """A hidden path that was replaced, and is visible now: the command must end. Poll this while it runs."""
        return self._watched.find_replaced()

    def find_new_names(self) -> list[str]:
        """Names that tools act on, created by a command in direct mode: a mount cannot protect a missing file."""
        if self.mode != "direct" or "" in self._found.kept:
            return []
        return sorted({*self._guard.find(self.folder).kept} - {*self._found.kept})

    async def close(self) -> None:
        """End everything, in bounded time. Can be called twice."""
        from casemate.execution.threads import to_thread_to_end

        self._watched.close()
        await to_thread_to_end(self._context.sandbox_network.close)
        await self._wall.close()
        if self._approvals is not None:
            await to_thread_to_end(self._approvals.close)
        self._log.close()

    def _make(self, secrets: Secrets) -> tuple[wrapped.Wrapped, AdmittedRequest]:
        asked = self._asked
        command = commands.find(asked.command, asked.environ.get("PATH", ""), Path(asked.cwd), self.folder)
        check_seen(self._policy, self._wall, command.entries)
        self._found = look(self._context) or self._found
        shown = tuple(self._shown_folders(command.shown))
        place = "" if self.folder.is_relative_to("/workspace") else str(self.folder)
        workspace = Workspace(self.mode, str(self.folder), place, *astuple(self._found))
        request = make_command(
            str(command.program), asked.arguments, timeout=asked.timeout, env=asked.env, secrets=secrets,
            namespace=self._namespace,
        )  # fmt: skip
        made = wrapped.Wrapped(
            request=request,
            entries=(*command.entries, *_places(workspace, shown)),
            shown=shown,
            folders=command.folders,
            workspace=workspace,
            cwd=wrapped.cwd_in_cell(str(self.folder), place, os.path.realpath(asked.cwd)),
            reserve=commands.RESERVE,
            heap=command.is_node,
        )
        return made, wrapped.admit_wrapped(made, self._context, self._longest)

    def _shown_folders(self, needed: tuple[Path, ...]) -> Iterator[Shown]:
        """Host paths outside its folder that the command sees. Parts of the user's home are in the cell's home, too."""
        outer = Path(os.path.realpath(self._policy.workspace or self.folder))
        named = (path for path in self._named if not is_inside(Path(os.path.realpath(path)), outer))
        wanted = [*self._copied, *needed, *(_readable(path, "read") for path in named)]
        for path in dict.fromkeys(wanted):
            others = (other for other in wanted if other != path)
            if is_system(path) or is_inside(path, self.folder) or any(is_inside(path, other) for other in others):
                continue
            inside = [f"{HOME}/{path.relative_to(home)}" for home in homes() if is_inside(path, home)]
            places = tuple(dict.fromkeys((str(path), *inside[:1])))
            is_copied = path in self._copied
            hidden = self._guard.find_hidden(path, "copy" if is_copied else "read")
            yield Shown(str(path), places, hidden, copied=is_copied)

    async def secrets(self) -> Secrets:
        """Its secrets. The code that passes on its output must redact them. Raises ``CasemateError``."""
        if self._held is None:
            self._held = NO_SECRETS
            if self._asked.secrets:
                from casemate.vault.vault import Vault

                store = opened_store(self._vault, self._asked.environ)
                vault = Vault(store, self._namespace, partial(self._log.append, "vault"), self._get_approvals().check)
                self._held = await vault.resolve_async(self._asked.secrets)
        return self._held

    def _get_approvals(self) -> Approvals:
        """Approvals by rules only: standard input belongs to the command, so there is no approver."""
        from casemate.approvals.approvals import Approvals

        if self._approvals is None:
            rules = partial(rulebook, self._policy, self._log, self._namespace)
            has_rules = self._policy.written is not None
            self._approvals = Approvals(None, None, partial(self._log.append, "decision"), rules, has_rules=has_rules)
        return self._approvals


def wrap_options(isolation: str, policy: Policy) -> tuple[str, ...]:
    """The settings of a sandbox that apply to a wrapped command, as options of ``casemate wrap``."""
    limits = {name: value for name, value in policy.limits.items() if name in COMMAND_LIMITS and value is not None}
    return (
        "--isolation", isolation,
        *(("--at-least", policy.at_least) if policy.at_least else ()),
        *(word for name, value in limits.items() for word in (f"--{name.replace('_', '-')}", str(value))),
        *(word for path, _ in policy.hidden for word in ("--hide", path)),
    )  # fmt: skip


def _with_hidden(paths: tuple[str, ...], bound: Bounded) -> Bounded:
    hidden = (*bound.policy.hidden, *((path, "--hide") for path in paths))
    return bound._replace(policy=replace(bound.policy, hidden=hidden))


def _folder(given: str | os.PathLike[str]) -> Path:
    """The folder that a command works in. Raises ``InvalidArgument`` if it would show or cover too much."""
    folder = checked_folder("workspace", given)
    assert folder is not None
    return _sound("workspace", folder.resolve())


def _readable(path: str, argument: str) -> Path:
    if is_pattern(path):
        raise InvalidArgument(argument, f"{path}: a pattern cannot be shown; name the file or folder")
    place = Path(os.path.realpath(path))
    if not place.exists():
        raise InvalidArgument(argument, f"{path!r} does not exist")
    if argument == "copy" and not place.is_dir():
        raise InvalidArgument(argument, f"{path!r} is not a folder; show a file with --read")
    return _sound(argument, place)


def _sound(argument: str, path: Path) -> Path:
    reason = too_wide(path)
    if not reason and (str(path) in _ROOTS or any(is_inside(path, one) for one in _OF_THE_CELL)):
        reason = "a cell has its own folder there"
    if not reason and argument == "workspace" and is_system(path):
        reason = "it belongs to the system"
    if reason:
        raise InvalidArgument(
            argument, f"{str(path)!r} cannot be shown to a command: {reason}", remediation="Name a folder within it."
        )
    return path


def _places(workspace: Workspace, shown: tuple[Shown, ...]) -> Iterator[Entry]:
    """The mount points of shown folders that are outside the cell's own folders."""
    own = ("/workspace/", "/tmp/", "/var/tmp/", "/dev/shm/", f"{HOME}/")
    for one in shown:
        for place in one.places:
            if not place.startswith(own):
                yield MountPoint(place, folder=os.path.isdir(one.source))
    if workspace.place and not workspace.place.startswith(own):
        yield MountPoint(workspace.place, folder=True)
