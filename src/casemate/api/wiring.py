"""Where the parts of a sandbox are put together: opened as they are needed, and closed in reverse."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from casemate.api.arguments import (
    check_apart,
    check_approver,
    check_namespace,
    check_preload,
    checked_concurrency,
    checked_folder,
    checked_output_dir,
    opened_store,
    requirements_in,
)
from casemate.api.policy_options import bound_by_policy, check_seen, rulebook
from casemate.api.record import open_log
from casemate.errors import CasemateError, InvalidArgument, QueueFull, SandboxClosed
from casemate.execution.context import ExecutionContext, Tally, no_previews
from casemate.execution.network import Interceptions, Offer, SandboxNetwork
from casemate.execution.request import check_timeout
from casemate.languages.catalogue import launch_probe, runtime_for
from casemate.model.operation import account, caller
from casemate.model.plan import AT_ITS_TURN, NO_SECRETS, Secrets
from casemate.telemetry import SANDBOXES
from casemate.walls.registry import open_wall

if TYPE_CHECKING:
    import asyncio
    from contextlib import AbstractAsyncContextManager

    from casemate.approvals.approvals import Approvals
    from casemate.artifacts.kept import Artifacts
    from casemate.audit.reading import Audit
    from casemate.execution.capture import Emitter
    from casemate.execution.egress_request import Egress
    from casemate.execution.evidence import Evidence
    from casemate.execution.slots import Claim, Slots
    from casemate.host.host import Host
    from casemate.languages.runtime import Environment
    from casemate.model.approval import Question
    from casemate.model.execution import Execution
    from casemate.model.limits import Limits
    from casemate.model.overview import InstalledPackage, Stats
    from casemate.model.plan import Entry, Request
    from casemate.packages.indexes import Index
    from casemate.policy.hosts import HostRules
    from casemate.previews.gateway import PreviewGateway
    from casemate.sessions.packages import Packages
    from casemate.sessions.registry import Sessions
    from casemate.sessions.run import Run, StartedRuns
    from casemate.sessions.session import Session
    from casemate.tools.broker import Broker
    from casemate.tools.connections.answers import ServerTools
    from casemate.tools.connections.servers import Servers
    from casemate.tools.tools import Tools
    from casemate.vault.vault import Vault
    from casemate.web.web import Web

T = TypeVar("T")
_MOST_INNER = 4  # cells at once for calls from other cells
_MOST_KNOWN = 10_000  # runs of which nothing is kept but that they left no files


class _Part(Generic[T]):
    """A part that is made when it is first wanted, by whatever thread, and then found in the object itself."""

    def __init__(self, make: Callable[[SandboxParts], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, parts: SandboxParts, _: type) -> T:
        with parts.making:
            made = vars(parts)
            if self._name not in made:
                from casemate.event_loop import close_at_exit

                close_at_exit(parts)
                made[self._name] = self._make(parts)
            return cast("T", made[self._name])


class SandboxParts:
    """``options``: those of :class:`casemate.Sandbox`, all of them. Raises as that does."""

    _closed = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        bound = bound_by_policy(options)
        approve, environment, preload, vault = (
            options[name] for name in ("approve", "environment", "preload", "vault")
        )
        self._concurrency = checked_concurrency(options["concurrency"])
        containers = options["image"], options["runtime"]
        self.wall = open_wall(bound.isolation, launch_probe, self._concurrency, bound.policy.at_least, containers)
        if bound.policy.hidden:
            check_seen(bound.policy, self.wall, _needed_by_python(environment))
        check_approver(approve)
        folder = checked_folder("workspace", bound.workspace)
        output_folder = checked_output_dir(options["output_dir"])
        check_apart(bound.workspace_mode, output_folder, folder)
        self._written_through = os.path.realpath(folder) if folder and bound.workspace_mode == "direct" else None
        check_preload(preload)
        self._indexes, self._wanted = _indexes_in(options["package_indexes"]), requirements_in(environment)
        self.namespace: str = options["namespace"]
        check_namespace(self.namespace)
        self._definitions = _definitions_in(options["tools"])
        self._policy, self._approve, self._isolation = bound.policy, approve, bound.isolation
        self._make_guard = bound.guard
        self._approval_timeout = check_timeout(options["approval_timeout"], "approval_timeout")
        self._store = None if vault is None else opened_store(vault, os.environ)
        self.log = open_log(options)
        self.context = ExecutionContext(
            wall=self.wall, log=self.log, approvals=lambda: self.approvals,
            limits=bound.limits, runtime_for=runtime_for,
            environment=None if self._wanted else environment,
            preload=None if preload is None else tuple(preload),
            workspace=folder, workspace_mode=bound.workspace_mode, output_dir=output_folder,
            sandbox_network=SandboxNetwork(bound.policy.requests, Interceptions(bound.intercept, bound.trust)),
            hosts=bound.hosts, guard=None if folder is None else bound.guard(),
            offers=self._offers, step_offers=self._step_offers, ready=self._ready, finished=self._note_finished,
            layer=lambda: self.packages.shared_folders() if "packages" in vars(self) else (),
            policy_sha256=lambda: self.policy_sha256, sign=lambda one: self.evidence.sign(one.id, one),
            previews=(lambda: self.previews) if bound.policy.previews else no_previews,
        )  # fmt: skip
        self._most, self._tally, self._without_files = bound.limits, Tally(), deque[str](maxlen=_MOST_KNOWN)
        self.making = threading.RLock()  # other threads may ask for parts
        SANDBOXES.add(self)

    @_Part
    def approvals(self) -> Approvals:
        """The approvals of the sandbox."""
        from casemate.approvals.approvals import Approvals

        return Approvals(
            self._approve, self._approval_timeout, partial(self.log.append, "decision"),
            partial(rulebook, self._policy, self.log, self.namespace), has_rules=self._policy.written is not None,
            namespace=self.namespace, record_request=partial(self.log.append, "request"), notes=self._policy.warnings,
        )  # fmt: skip

    @_Part
    def previews(self) -> PreviewGateway:
        """Where servers of sessions are shown."""
        from casemate.previews.gateway import PreviewGateway

        return PreviewGateway()

    @_Part
    def vault(self) -> Vault:
        """The secrets of the namespace."""
        from casemate.vault.vault import Vault

        store = self._store or opened_store(None, os.environ)
        return Vault(store, self.namespace, self.log.note, self._check_denied)

    def _check_denied(self, question: Question) -> None:
        self.approvals.check(question)

    def resolve_secrets(self, names: object) -> Secrets:
        """The secrets of these names, or those that somebody has already. May block. Raises as the vault does."""
        if isinstance(names, Secrets):
            return names
        return self.vault.resolve(names) if names not in (None, (), []) else NO_SECRETS

    @_Part
    def tools(self) -> Tools:
        """MCP servers and their tools."""
        from casemate.tools.tools import Tools

        return Tools(self._servers, self._written_through)

    @_Part
    def broker(self) -> Broker:
        """Between the tools and the cells."""
        from casemate.tools.broker import Broker

        return Broker(self.tools, partial(self.log.append, "crossing"))

    def _servers(self, on_tools: Callable[[ServerTools], None]) -> Servers:
        from casemate.api.wrapping import wrap_options
        from casemate.tools.connections.definition import OwnFunctions, ServerDefinition
        from casemate.tools.connections.servers import Servers

        bounds = wrap_options(self._isolation, self._policy)
        servers = Servers(os.environ, self.vault.host_secrets, on_tools=on_tools, wall=bounds)
        for name, definition in self._definitions.items():
            servers.add(name, definition)
        for name, functions in self._own_functions().items():
            servers.add(name, ServerDefinition(name, OwnFunctions(functions)))
        return servers

    def _own_functions(self) -> dict[str, dict[str, Any]]:
        """What code in cells can call of ours, where the policy has opened it, by the name of the module."""
        opened = {
            "host": (self._policy.host, ("exec", "request_access", "access", "read", "list", "write", "copy")),
            "web": (self._policy.web, ("search", "fetch", "browse")),
        }
        return {
            part: {name: getattr(getattr(self, part), name) for name in names}
            for part, (terms, names) in opened.items()
            if terms is not None
        }

    def _offers(self) -> tuple[Offer, ...]:
        """What each cell has of the host's own, now."""
        is_wanted = "tools" in vars(self) or self._definitions or self._policy.host or self._policy.web
        return (self.broker,) if is_wanted and self.tools.has_servers else ()

    @_Part
    def sessions(self) -> Sessions:
        """Those that are open."""
        from casemate.sessions.registry import Sessions

        return Sessions()

    @_Part
    def background(self) -> StartedRuns:
        """The runs that go on by themselves."""
        from casemate.sessions.run import StartedRuns

        return StartedRuns()

    def start_run(self, request: Request, work: Callable[[Emitter], Coroutine[Any, Any, object]] | None = None) -> Run:
        """Start ``request`` in a fresh cell; it goes on when whoever began it goes away, and ends with the sandbox at
        the latest. ``work`` is done instead, to the same end: an execution with the id of ``request``, whose events
        the emitter gets. Raises ``QueueFull``."""
        from casemate.sessions.run import Run

        self.slots.check_waits(self.claim(request))
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

        async with self.slot(request):
            self.check_open()
            await pipeline.execute(request, self.context, emitter)

    @_Part
    def packages(self) -> Packages:
        """What is installed."""
        from casemate.sessions.packages import Packages

        environ = dict(os.environ)
        return Packages(self.context, self.namespace, self.sessions, self._indexes, environ, self._wanted)

    async def _ready(self) -> None:
        if self._wanted:
            await self.packages.prepare()

    def _step_offers(self, stream: bool) -> tuple[Offer, ...]:
        """Packages, where they could be allowed."""
        return self.packages.offers() if self.approvals.may_ask("package", stream=stream) else ()

    @_Part
    def _inner_slots(self) -> asyncio.Semaphore:
        """The cells that may run for calls from other cells."""
        import asyncio

        return asyncio.Semaphore(_MOST_INNER)

    @_Part
    def slots(self) -> Slots:
        """The cells that may run at once. asyncio loads while the supervisor starts, so not before."""
        from casemate.execution.slots import Slots

        return Slots(self._concurrency)

    def share_slots(self, slots: Slots) -> None:
        """Have turns of these, which another sandbox has, too. Before anything runs."""
        vars(self)["slots"] = slots

    def claim(self, request: Request | None = None) -> Claim:
        """What is said of ``request`` where turns are given; its time to start counts from now."""
        from casemate.execution.slots import Claim

        priority, within = AT_ITS_TURN if request is None else request.turn
        by = None if within is None else time.monotonic() + within
        return Claim(self.namespace, account(), self._note_refused, priority, by)

    def slot(
        self,
        request: Request | None = None,
        lock: asyncio.Lock | None = None,
        has_cell: Callable[[], bool] = lambda: False,
    ) -> AbstractAsyncContextManager[None]:
        """A turn, to be entered: see :meth:`Slots.turn`."""
        return self.slots.turn(self.claim(request), lock, has_cell)

    def _note_refused(self, full: QueueFull) -> None:
        detail = {"problem": full.message, "retry_after": full.retry_after, "missing": full.missing}
        self.log.append_if_possible("queue", "", self.namespace, detail)

    @_Part
    def artifacts(self) -> Artifacts:
        """What the last runs left."""
        from casemate.artifacts.kept import Artifacts

        return Artifacts(without=self._without_files)

    @_Part
    def audit(self) -> Audit:
        """The record, for reading."""
        from casemate.audit.reading import Audit

        return Audit(self.log, self.namespace)

    @_Part
    def evidence(self) -> Evidence:
        """What proves what ran."""
        from casemate.execution.evidence import Evidence

        return Evidence(self.log, self.audit, self.namespace)

    @_Part
    def policy_sha256(self) -> str:
        """Of all that the policy says."""
        from casemate.execution.digests import of_policy

        return of_policy(self._policy)

    @_Part
    def egress(self) -> Egress:
        """Hosts that are asked for before a program needs them."""
        from casemate.execution.egress_request import Egress

        async def find_session(id_or_name: str) -> tuple[str, HostRules | None]:
            session = await self.sessions.get(id_or_name)
            return session.id, session.steps.terms.admitted.through

        return Egress(lambda: self.context, self.namespace, find_session)

    @_Part
    def host(self) -> Host:
        """What of the host is open."""
        import asyncio

        from casemate.host.host import Host, HostSurroundings
        from casemate.tools.connections.own import calling_requester

        def record(run: str, detail: Mapping[str, object]) -> None:
            calling = calling_requester()
            whose = {"caller": caller()} if caller() else {}
            told = detail if calling is None else calling.redact(dict(detail))
            self.log.append("crossing", run or (calling.run if calling else ""), self.namespace, {**told, **whose})

        async def find_session(id_or_name: str) -> Session:
            calling = calling_requester()
            own = await self.sessions.get(calling.session) if calling is not None and calling.session else None
            if calling is not None and (own is None or id_or_name not in (own.id, own.name)):
                raise InvalidArgument("session", "code in a cell copies to and from its own session alone")
            return own or await self.sessions.get(id_or_name)

        guard = self.context.guard or self._make_guard()
        surroundings = HostSurroundings(
            self.namespace, lambda: self.approvals, record,
            lambda names: asyncio.to_thread(self.resolve_secrets, names), find_session,
            None if self.context.workspace is None else str(self.context.workspace),
            self._written_through is not None,
            lambda path, writes: guard.why_closed(path, self.context.workspace, writes=writes),
        )  # fmt: skip
        return Host(self._policy.host, surroundings)

    @_Part
    def web(self) -> Web:
        """Searches and pages."""
        from casemate.tools.connections.own import calling_requester
        from casemate.web.web import Web

        def hosts() -> HostRules | None:
            calling = calling_requester()
            return self.context.hosts if calling is None else calling.hosts

        return Web(lambda: self.context, hosts, self.turn, self.namespace, self._policy.web)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """One of the slots, of a sandbox that is open; of a few others for code in a cell, which holds a slot already.
        Raises ``QueueFull``, ``SandboxClosed``."""
        from casemate.tools.connections.own import calling_requester

        async with self._inner_slots if calling_requester() is not None else self.slot():
            self.check_open()
            yield

    def _note_finished(self, execution: Execution) -> None:
        self._tally.add(execution)
        if execution.artifacts or execution.full_output is not None:
            self.artifacts.keep(execution)
        else:
            self._without_files.append(execution.id)

    def stats(self) -> Stats:
        """What goes on now. From any thread; may block."""
        from casemate.execution.overview import stats

        made = vars(self)
        sessions = len(self.sessions) if "sessions" in made else 0
        approvals = self.approvals.pending_count if "approvals" in made else 0
        queue = *self.slots.counts(self.namespace), self.slots.most
        return stats(self.wall, queue, sessions, approvals, self._tally)

    async def packages_of(self, session: Session) -> tuple[InstalledPackage, ...]:
        """What was installed for it, or for all."""
        from casemate.policy.rules import PACKAGE_LANGUAGES

        if "packages" not in vars(self) or session.language not in PACKAGE_LANGUAGES:
            return ()
        return await self.packages.list(language=session.language, session=session)

    def set_limits(self, changes: Mapping[str, Any]) -> Limits:
        """Those of later runs. Raises ``InvalidArgument``."""
        from casemate.execution.admit import Cap

        self.context = replace(self.context, limits=Cap(self._most, self._policy).change(self.context.limits, changes))
        return self.context.limits

    def check_open(self) -> None:
        """Raises ``SandboxClosed``."""
        if self._closed:
            raise SandboxClosed("the sandbox was closed")

    async def close(self) -> None:
        """End every cell and everything that was started. Bounded; it may be called again."""
        from casemate.event_loop import forget_at_exit
        from casemate.execution.threads import to_thread_to_end

        self._closed = True
        forget_at_exit(self)
        SANDBOXES.discard(self)
        made = vars(self)
        async with contextlib.AsyncExitStack() as closing:  # in reverse, each whatever becomes of the others
            closing.callback(self.log.close)
            for name in ("artifacts", "packages", "approvals", "tools", "host"):
                if name in made:
                    closing.push_async_callback(to_thread_to_end, made[name].close)
            closing.push_async_callback(to_thread_to_end, self.context.sandbox_network.close)
            closing.push_async_callback(self.wall.close)
            for name in ("previews", "web", "sessions", "background"):
                if name in made:
                    closing.push_async_callback(made[name].close)


def _needed_by_python(environment: Environment) -> tuple[Entry, ...]:
    """What programs see for its sake; what it is made of later is casemate's own."""
    with contextlib.suppress(CasemateError):  # the program's own run reports it
        return runtime_for("python").launch(environment, "", ()).entries
    return ()


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
