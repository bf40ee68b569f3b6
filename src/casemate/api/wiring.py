"""Where the parts of a sandbox are put together: opened as they are needed, and closed in reverse."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.api.policy_options import Bounded, bound_by_policy, rulebook
from casemate.audit.log import AuditLog, default_path
from casemate.errors import QueueFull, SandboxClosed
from casemate.execution.context import ExecutionContext
from casemate.execution.given import (
    check_apart,
    check_approver,
    check_namespace,
    check_preload,
    checked_concurrency,
    checked_folder,
    checked_output_dir,
    checked_path,
    opened_store,
)
from casemate.execution.interception import Interceptions
from casemate.execution.network import Offer, SandboxNetwork
from casemate.execution.request import check_timeout
from casemate.execution.tally import Tally
from casemate.languages.catalogue import launch_probe, runtime_for
from casemate.model.plan import NO_SECRETS, Secrets
from casemate.walls.registry import open_wall

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.artifacts.kept import Artifacts
    from casemate.audit.reading import Audit
    from casemate.execution.egress_request import Egress
    from casemate.execution.emitter import Emitter
    from casemate.execution.overview import Load
    from casemate.execution.slots import Slots
    from casemate.languages.runtime import Environment
    from casemate.model.execution import Execution
    from casemate.model.limits import Limits
    from casemate.model.overview import InstalledPackage
    from casemate.model.plan import Request
    from casemate.packages.indexes import Index
    from casemate.packages.names import Requirement
    from casemate.policy.hosts import HostRules
    from casemate.sessions.packages import Packages
    from casemate.sessions.registry import Sessions
    from casemate.sessions.run import Run, StartedRuns
    from casemate.sessions.session import Session
    from casemate.tools.broker import Broker
    from casemate.tools.connections.answers import ServerTools
    from casemate.tools.connections.servers import Servers
    from casemate.tools.tools import Tools
    from casemate.vault.vault import Vault
    from casemate.workspace.guarding import Guard

_MOST_KNOWN = 10_000  # runs of which nothing is kept but that they left no files


class SandboxParts:
    """``options``: those of :class:`casemate.Sandbox`, all of them. Raises as that does."""

    # Made when first wanted.
    _packages: Packages | None = None
    _vault: Vault | None = None
    _slots: Slots | None = None
    _sessions: Sessions | None = None
    _background: StartedRuns | None = None
    _approvals: Approvals | None = None
    _tools: Tools | None = None
    _broker: Broker | None = None
    _artifacts: Artifacts | None = None
    _egress: Egress | None = None
    _closed = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        bound = bound_by_policy(options)
        approve, environment, preload, vault = (
            options[name] for name in ("approve", "environment", "preload", "vault")
        )
        self._concurrency = checked_concurrency(options["concurrency"])
        self.wall = open_wall(bound.isolation, launch_probe, self._concurrency)
        check_approver(approve)
        folder = checked_folder("workspace", bound.workspace)
        output_folder = checked_output_dir(options["output_dir"])
        check_apart(bound.workspace_mode, output_folder, folder)
        check_preload(preload)
        self._indexes, self._wanted = _indexes_in(options["package_indexes"]), _wanted_in(environment)
        self.namespace: str = options["namespace"]
        check_namespace(self.namespace)
        self._definitions = _definitions_in(options["tools"])
        self._policy, self._approve = bound.policy, approve
        self._approval_timeout = check_timeout(options["approval_timeout"], "approval_timeout")
        self._store = None if vault is None else opened_store(vault, os.environ)
        audit = options["audit"]
        self.log = AuditLog(default_path(os.environ) if audit is None else checked_path("audit", audit))
        self.context = ExecutionContext(
            wall=self.wall, log=self.log, approvals=lambda: self.approvals,
            limits=bound.limits, runtime_for=runtime_for,
            environment=None if self._wanted else environment,
            preload=None if preload is None else tuple(preload),
            workspace=folder, workspace_mode=bound.workspace_mode, output_dir=output_folder,
            sandbox_network=SandboxNetwork(bound.policy.requests, Interceptions(bound.intercept, bound.trust)),
            hosts=bound.hosts, guard=None if folder is None else _guard_of(bound),
            offers=self._offers, step_offers=self._step_offers, ready=self._ready, finished=self._note_finished,
            layer=lambda: () if self._packages is None else self._packages.shared_folders(),
        )  # fmt: skip
        self._most, self._tally, self._without_files = bound.limits, Tally(), deque[str](maxlen=_MOST_KNOWN)
        self._making = threading.Lock()  # of approvals, vault and tools: other threads may ask for them

    @property
    def approvals(self) -> Approvals:
        """The approvals of the sandbox."""
        from casemate.approvals.approvals import Approvals

        with self._making:
            if self._approvals is None:
                policy = self._policy
                given = (
                    self._approve,
                    self._approval_timeout,
                    partial(self.log.append, "decision"),
                    partial(rulebook, policy),
                )
                self._approvals = Approvals(
                    *given, has_rules=policy.written is not None, record_request=partial(self.log.append, "request"),
                    record_now=partial(self.log.append, "decision", wait=False),
                )  # fmt: skip
            return self._approvals

    @property
    def vault(self) -> Vault:
        """The secrets of the namespace."""
        from casemate.vault.vault import Vault

        with self._making:
            if self._vault is None:
                self._vault = Vault(self._store or opened_store(None, os.environ), self.namespace, self.log.note)
            return self._vault

    def resolve_secrets(self, names: object) -> Secrets:
        """The secrets of these names, or those that somebody has already. May block. Raises as the vault does."""
        if isinstance(names, Secrets):
            return names
        return self.vault.resolve(names) if names not in (None, (), []) else NO_SECRETS

    @property
    def tools(self) -> Tools:
        """MCP servers and their tools."""
        from casemate.tools.tools import Tools

        with self._making:
            if self._tools is None:
                self._tools = Tools(self._servers)
            return self._tools

    def _servers(self, heard: Callable[[ServerTools], None]) -> Servers:
        from casemate.tools.connections.servers import Servers

        servers = Servers(os.environ, self.vault.host_secrets, on_tools=heard)
        for name, definition in self._definitions.items():
            servers.add(name, definition)
        return servers

    def _offers(self) -> tuple[Offer, ...]:
        """What each cell has of the host's own, now."""
        if (self._tools is None and not self._definitions) or not self.tools.has_servers:
            return ()
        from casemate.tools.broker import Broker

        self._broker = self._broker or Broker(self.tools, self._note_call)
        return (self._broker,)

    def _note_call(self, run: str, namespace: str, detail: dict[str, Any]) -> None:
        self.log.append("crossing", run, namespace, detail)

    @property
    def sessions(self) -> Sessions:
        """Those that are open."""
        from casemate.sessions.registry import Sessions

        if self._sessions is None:
            self._sessions = Sessions()
        return self._sessions

    @property
    def background(self) -> StartedRuns:
        """The runs of their own that go on by themselves."""
        from casemate.sessions.run import StartedRuns

        if self._background is None:
            self._background = StartedRuns()
        return self._background

    def start_run(self, request: Request, work: Callable[[Emitter], Coroutine[Any, Any, object]] | None = None) -> Run:
        """Start ``request`` in a fresh cell; it goes on when whoever began it goes away, and ends with the sandbox at
        the latest. ``work`` is done instead, to the same end: an execution with the id of ``request``, whose events
        the emitter gets. Raises ``QueueFull``."""
        from casemate.sessions.run import Run

        self.slot().check_room()
        run = Run(
            request.id,
            work or partial(self._execute, request),
            _end_cell,
            lambda request_id: self.approvals.answer_function(request_id),  # noqa: PLW0108 - made when something is asked
            is_step=False,
        )
        return self.background.add(run)

    async def _execute(self, request: Request, emitter: Emitter) -> None:
        from casemate.execution import pipeline

        async with self.slot():
            self.check_open()
            await pipeline.execute(request, self.context, emitter)

    @property
    def packages(self) -> Packages:
        """What is installed."""
        from casemate.sessions.packages import Packages

        if self._packages is None:
            mine = (self.context, self.namespace, self.sessions, self._indexes, dict(os.environ), self._wanted)
            self._packages = Packages(*mine)
        return self._packages

    async def _ready(self) -> None:
        if self._wanted:
            await self.packages.prepare()

    def _step_offers(self, stream: bool) -> tuple[Offer, ...]:
        """Packages, where they could be allowed."""
        return self.packages.offers() if self.approvals.may_ask("package", stream=stream) else ()

    def slot(self) -> Slots:
        """One of the cells that may run at once. asyncio loads while the supervisor starts, so not before."""
        from casemate.execution.slots import Slots

        if self._slots is None:
            self._slots = Slots(self._concurrency, self._note_refused)
        return self._slots

    def _note_refused(self, full: QueueFull) -> None:
        self.log.note_soon("queue", "", self.namespace, {"problem": full.message, "retry_after": full.retry_after})

    @property
    def artifacts(self) -> Artifacts:
        """What the last runs left."""
        from casemate.artifacts.kept import Artifacts

        self._artifacts = self._artifacts or Artifacts(without=self._without_files)
        return self._artifacts

    @property
    def audit(self) -> Audit:
        """The record, for reading."""
        from casemate.audit.reading import Audit

        return Audit(self.log, self.namespace)

    @property
    def egress(self) -> Egress:
        """Hosts that are asked for ahead."""
        from casemate.execution.egress_request import Egress

        async def session(id_or_name: str) -> tuple[str, HostRules | None]:
            from casemate.sessions.inspection import hosts_of

            found = await self.sessions.get(id_or_name)
            return found.id, hosts_of(found)

        self.check_open()
        self._egress = self._egress or Egress(lambda: self.context, self.namespace, session)
        return self._egress

    def _note_finished(self, execution: Execution) -> None:
        self._tally.add(execution)
        if execution.artifacts or execution.full_output is not None:
            self.artifacts.keep(execution)
        else:
            self._without_files.append(execution.id)

    async def load(self) -> Load:
        """What goes on now."""
        from casemate.execution.overview import Load

        slots = self.slot()
        sessions = 0 if self._sessions is None else len(await self._sessions.list())
        approvals = 0 if self._approvals is None else self._approvals.pending_count
        return Load(slots.running, slots.waiting, self._concurrency, sessions, approvals, self._tally)

    async def packages_of(self, session: Session) -> tuple[InstalledPackage, ...]:
        """What was installed for it, or for all."""
        if self._packages is None or session.language not in ("python", "node"):
            return ()
        return await self._packages.list(language=session.language, session=session)

    def set_limits(self, given: Mapping[str, Any]) -> Limits:
        """Those of later runs. Raises ``InvalidArgument``."""
        from casemate.execution.limits_in_force import Cap

        self.context = replace(self.context, limits=Cap(self._most, self._policy).change(self.context.limits, given))
        return self.context.limits

    def check_open(self) -> None:
        """Raises ``SandboxClosed``."""
        if self._closed:
            raise SandboxClosed("the sandbox was closed")

    async def close(self) -> None:
        """End every cell and everything that was started. Bounded; harmless when repeated."""
        self._closed = True
        from casemate.execution.finishing import to_thread_to_end

        async with contextlib.AsyncExitStack() as closing:  # in reverse, each whatever becomes of the others
            closing.callback(self.log.close)
            if self._artifacts is not None:
                closing.callback(self._artifacts.close)
            if self._packages is not None:
                closing.push_async_callback(to_thread_to_end, self._packages.close)
            if self._approvals is not None:
                closing.push_async_callback(to_thread_to_end, self._approvals.close)
            if self._tools is not None:
                closing.push_async_callback(to_thread_to_end, self._tools.close)
            closing.push_async_callback(to_thread_to_end, self.context.sandbox_network.close)
            closing.push_async_callback(self.wall.close)
            if self._sessions is not None:
                closing.push_async_callback(self._sessions.close)
            if self._background is not None:
                closing.push_async_callback(self._background.close)


def _guard_of(bound: Bounded) -> Guard:
    """What of a caller's folder no program sees."""
    from casemate.workspace.guarding import HIDDEN, Guard

    return Guard(hidden=tuple(path for path, _ in bound.policy.hidden), usual=HIDDEN, seen=bound.seen)


def _wanted_in(environment: Environment) -> tuple[Requirement, ...]:
    """The requirements that an environment is to be made of. Raises ``InvalidArgument``."""
    if not isinstance(environment, list | tuple):
        return ()
    from casemate.packages.names import requirements

    return requirements(environment, "environment")


def _definitions_in(tools: object) -> Mapping[str, Mapping[str, Any]]:
    """The MCP servers that there are from the start. Raises ``InvalidArgument``."""
    if tools is None:
        return {}
    from casemate.tools.files import definitions_of

    return definitions_of(tools)


def _indexes_in(addresses: Sequence[str]) -> tuple[Index, ...]:
    """Where packages come from, as the application says. Raises ``InvalidArgument``."""
    if not addresses:
        return ()
    from casemate.packages.indexes import check_indexes

    return check_indexes(addresses)


def _end_cell(emitter: Emitter | None) -> bool:
    """End the cell; whether there was one."""
    if emitter is None or emitter.end_cell is None:
        return False
    emitter.end_cell()
    return True
