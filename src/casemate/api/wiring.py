"""The parts of a sandbox: made on first use, and closed in reverse order."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from casemate.api.arguments import (
    check_apart,
    check_approver,
    check_namespace,
    check_preload,
    checked_concurrency,
    checked_folder,
    checked_output_dir,
    open_log,
    opened_store,
    requirements_in,
)
from casemate.api.policy_options import bound_by_policy, check_seen, rulebook
from casemate.errors import CasemateError, InvalidArgument, QueueFull, SandboxClosed
from casemate.execution.context import ExecutionContext, Folder, Supplies, Tally, no_previews
from casemate.execution.network import Offer, SandboxNetwork
from casemate.execution.request import check_timeout
from casemate.languages.catalogue import launch_probe, runtime_for
from casemate.model.operation import account, caller
from casemate.model.plan import AT_ITS_TURN, NO_SECRETS, Secrets
from casemate.telemetry import SANDBOXES
from casemate.walls.registry import open_wall

if TYPE_CHECKING:
    import asyncio
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

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
    from casemate.model.overview import Stats
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

_MOST_INNER = 4  # cells at once for calls from other cells
_MOST_KNOWN = 10_000  # finished runs known to have left no artifacts

if TYPE_CHECKING:
    _Part = cached_property
else:

    class _Part(cached_property):
        """A cached property for any thread. The sandbox is closed no later than at the interpreter's exit."""

        def __get__(self, sandbox, owner=None):
            if sandbox is None:
                return self
            with sandbox._making:
                made = vars(sandbox)
                if self.attrname not in made:
                    from casemate.event_loop import close_at_exit

                    close_at_exit(sandbox)
                    made[self.attrname] = self.func(sandbox)
                return made[self.attrname]


class SandboxParts:
    """The parts of a sandbox. ``options``: all those of :class:`casemate.Sandbox`. Raises what that raises."""

    _closed = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        bound = bound_by_policy(options)
        approve, environment, preload, vault = (
            options[name] for name in ("approve", "environment", "preload", "vault")
        )
        self._concurrency = checked_concurrency(options["concurrency"])
        containers = options["image"], options["runtime"]
        self._wall = open_wall(bound.isolation, launch_probe, self._concurrency, bound.policy.at_least, containers)
        if bound.policy.hidden:
            check_seen(bound.policy, self._wall, _needed_by_python(environment))
        check_approver(approve)
        folder = checked_folder("workspace", bound.workspace)
        output_folder = checked_output_dir(options["output_dir"])
        check_apart(bound.workspace_mode, output_folder, folder)
        self._written_through = os.path.realpath(folder) if folder and bound.workspace_mode == "direct" else None
        check_preload(preload)
        self._indexes, self._wanted = _indexes_in(options["package_indexes"]), requirements_in(environment)
        self._namespace: str = options["namespace"]
        check_namespace(self._namespace)
        self._definitions = _definitions_in(options["tools"])
        self._policy, self._approve, self._isolation = bound.policy, approve, bound.isolation
        self._make_guard = bound.guard
        self._approval_timeout = check_timeout(options["approval_timeout"], "approval_timeout")
        self._store = None if vault is None else opened_store(vault, os.environ)
        self._log = open_log(options)
        self._context = ExecutionContext(
            wall=self._wall, log=self._log, approvals=lambda: self.approvals,
            limits=bound.limits, hosts=bound.hosts,
            environment=None if self._wanted else environment,
            preload=None if preload is None else tuple(preload),
            folder=Folder(folder, bound.workspace_mode, output_folder, None if folder is None else bound.guard()),
            sandbox_network=SandboxNetwork(bound.policy.requests, bound.intercept, bound.trust),
            supplies=Supplies(self._offers, self._step_offers, self._layer, self._ready),
            finished=self._note_finished,
            policy_sha256=lambda: self._policy_sha256, sign=lambda one: self.evidence.sign(one.id, one),
            previews=(lambda: self._previews) if bound.policy.previews else no_previews,
        )  # fmt: skip
        self._most, self._tally, self._without_files = bound.limits, Tally(), deque[str](maxlen=_MOST_KNOWN)
        self._making = threading.RLock()  # other threads may use parts
        SANDBOXES.add(self)

    @property
    def namespace(self) -> str:
        """The owner of its secrets, named in each row of the record."""
        return self._namespace

    @property
    def limits(self) -> Limits:
        """The most that any run may use."""
        return self._context.limits

    @_Part
    def approvals(self) -> Approvals:
        """Pending requests: ``.pending()``, ``.decide(id, allow)``, ``.open()``, ``.rules``."""
        from casemate.approvals.approvals import Approvals

        return Approvals(
            self._approve, self._approval_timeout, partial(self._log.append, "decision"),
            partial(rulebook, self._policy, self._log, self._namespace), has_rules=self._policy.written is not None,
            namespace=self._namespace, record_request=partial(self._log.append, "request"), notes=self._policy.warnings,
        )  # fmt: skip

    @_Part
    def _previews(self) -> PreviewGateway:
        from casemate.previews.gateway import PreviewGateway

        return PreviewGateway()

    @_Part
    def vault(self) -> Vault:
        """The secrets of its namespace: ``await`` ``set(name, value)``, ``delete(name)`` and ``names()``."""
        from casemate.vault.vault import Vault

        store = self._store or opened_store(None, os.environ)
        return Vault(store, self._namespace, partial(self._log.append, "vault"), self._check_denied)

    def _check_denied(self, question: Question) -> None:
        self.approvals.check(question)

    def _resolve_secrets(self, names: object) -> Secrets:
        """The secrets of these names; resolved secrets stay as they are. May block. Raises what the vault raises."""
        if isinstance(names, Secrets):
            return names
        return self.vault.resolve(names) if names not in (None, (), []) else NO_SECRETS

    @_Part
    def tools(self) -> Tools:
        """MCP servers, whose tools programs call as functions: ``await`` ``add(name, definition)``, ``list()``,
        ``search(query)``, ``call(server, tool, arguments)``."""
        from casemate.tools.tools import Tools

        return Tools(self._servers, self._written_through)

    @_Part
    def _broker(self) -> Broker:
        from casemate.tools.broker import Broker

        return Broker(self.tools, partial(self._log.append, "crossing"))

    def _servers(self, on_tools: Callable[[ServerTools], None]) -> Servers:
        from casemate.api.wrapping import wrap_options
        from casemate.tools.connections.context import Surroundings
        from casemate.tools.connections.definition import OwnFunctions, ServerDefinition
        from casemate.tools.connections.servers import Servers

        bounds = wrap_options(self._isolation, self._policy)
        servers = Servers(Surroundings(os.environ, self.vault.host_secrets, on_tools, wall=bounds))
        for name, definition in self._definitions.items():
            servers.add(name, definition)
        for name, functions in self._own_functions().items():
            servers.add(name, ServerDefinition(name, OwnFunctions(functions)))
        return servers

    def _own_functions(self) -> dict[str, dict[str, Any]]:
        """The functions of casemate that code in cells can call, if the policy opens them, by module."""
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
        """The host's services that each cell gets now."""
        is_wanted = "tools" in vars(self) or self._definitions or self._policy.host or self._policy.web
        return (self._broker,) if is_wanted and self.tools.servers.definitions() else ()

    @_Part
    def sessions(self) -> Sessions:
        """The open sessions: ``await sandbox.sessions.get(id_or_name)``, ``.list()`` and ``.bridge(name, a, b)``."""
        from casemate.sessions.registry import Sessions

        return Sessions()

    @_Part
    def _background(self) -> StartedRuns:
        from casemate.sessions.run import StartedRuns

        return StartedRuns()

    def _start_run(self, request: Request, work: Callable[[Emitter], Coroutine[Any, Any, object]] | None = None) -> Run:
        """Start ``request`` in a fresh cell, in the background. It ends with the sandbox at the latest. ``work``
        replaces its execution: it sends events to the emitter, and must end with an execution with the id of
        ``request``. Raises ``QueueFull``."""
        from casemate.sessions.run import Run

        self._slots.check_waits(self._claim(request))
        run = Run(
            request.id,
            work or partial(self._execute, request),
            _end_cell,
            lambda request_id: self.approvals.answer_function(request_id),  # noqa: PLW0108 - made when something is asked
            is_step=False,
        )
        return self._background.add(run)

    async def _execute(self, request: Request, emitter: Emitter) -> None:
        from casemate.execution import pipeline

        async with self._slot(request):
            self._check_open()
            await pipeline.execute(request, self._context, emitter)

    @_Part
    def packages(self) -> Packages:
        """Packages of the operator's index: ``await`` ``install(names)``, ``list()`` and ``remove(names)``."""
        from casemate.sessions.packages import Packages

        environ = dict(os.environ)
        return Packages(self._context, self._namespace, self.sessions, self._indexes, environ, self._wanted)

    async def _ready(self) -> None:
        if self._wanted:
            await self.packages.prepare()

    def _layer(self) -> tuple[tuple[Path, str], ...]:
        return self.packages.shared_folders() if "packages" in vars(self) else ()

    def _step_offers(self, stream: bool) -> tuple[Offer, ...]:
        """Packages, if they could be allowed."""
        return (self.packages,) if self.approvals.may_ask("package", stream=stream) else ()

    @_Part
    def _inner_slots(self) -> asyncio.Semaphore:
        """Slots of cells for calls from other cells."""
        import asyncio

        return asyncio.Semaphore(_MOST_INNER)

    @_Part
    def _slots(self) -> Slots:
        """Slots of cells. Made late, because asyncio loads while the supervisor starts."""
        from casemate.execution.slots import Slots

        return Slots(self._concurrency)

    def _claim(self, request: Request | None = None) -> Claim:
        """The ticket of ``request`` in the queue; its time to start counts from now."""
        from casemate.execution.slots import Claim

        priority, within = AT_ITS_TURN if request is None else request.turn
        by = None if within is None else time.monotonic() + within
        return Claim(self._namespace, account(), self._note_refused, priority, by)

    def _slot(
        self,
        request: Request | None = None,
        lock: asyncio.Lock | None = None,
        has_cell: Callable[[], bool] = lambda: False,
    ) -> AbstractAsyncContextManager[None]:
        return self._slots.turn(self._claim(request), lock, has_cell)

    def _note_refused(self, full: QueueFull) -> None:
        detail = {"problem": full.message, "retry_after": full.retry_after, "missing": full.missing}
        self._log.append_if_possible("queue", "", self._namespace, detail)

    @_Part
    def artifacts(self) -> Artifacts:
        """Files of recent runs, by a run's id: ``await`` ``list(run)`` and ``read(run, name)``."""
        from casemate.artifacts.kept import Artifacts

        return Artifacts(without=self._without_files)

    @_Part
    def audit(self) -> Audit:
        """The record of its namespace: ``await`` ``tail(limit)`` and ``verify()``."""
        from casemate.audit.reading import Audit

        return Audit(self._log, self._namespace)

    @_Part
    def evidence(self) -> Evidence:
        """Proof of what ran: ``await`` ``statement(run)`` and ``save(run_or_session, path)``."""
        from casemate.execution.evidence import Evidence

        return Evidence(self._log, self.audit, self._namespace)

    @_Part
    def _policy_sha256(self) -> str:
        from casemate.execution.digests import of_policy

        return of_policy(self._policy)

    @_Part
    def egress(self) -> Egress:
        """Hosts that programs may reach, requested in advance: ``await request(domain)``."""
        self._check_open()
        from casemate.execution.egress_request import Egress

        async def find_session(id_or_name: str) -> tuple[str, HostRules | None]:
            session = await self.sessions.get(id_or_name)
            return session.id, session.steps.terms.admitted.through

        return Egress(lambda: self._context, self._namespace, find_session)

    @_Part
    def host(self) -> Host:
        """Host commands and files that a policy opens: ``await exec(words)``, ``read(path)``, ``access()``."""
        self._check_open()
        import asyncio

        from casemate.host.host import Host, HostSurroundings
        from casemate.tools.connections.own import calling_requester

        def record(run: str, detail: Mapping[str, object]) -> None:
            calling = calling_requester()
            whose = {"caller": caller()} if caller() else {}
            told = detail if calling is None else calling.redact(dict(detail))
            self._log.append("crossing", run or (calling.run if calling else ""), self._namespace, {**told, **whose})

        async def find_session(id_or_name: str) -> Session:
            calling = calling_requester()
            own = await self.sessions.get(calling.session) if calling is not None and calling.session else None
            if calling is not None and (own is None or id_or_name not in (own.id, own.name)):
                raise InvalidArgument("session", "code in a cell can only copy to and from its own session")
            return own or await self.sessions.get(id_or_name)

        guard = self._context.folder.guard or self._make_guard()
        surroundings = HostSurroundings(
            self._namespace, lambda: self.approvals, record,
            lambda names: asyncio.to_thread(self._resolve_secrets, names), find_session,
            None if self._context.folder.path is None else str(self._context.folder.path),
            self._written_through is not None,
            lambda path, writes: guard.why_closed(path, self._context.folder.path, writes=writes),
        )  # fmt: skip
        return Host(self._policy.host, surroundings)

    @_Part
    def web(self) -> Web:
        """The web: ``await`` ``search(query)``, ``fetch(url)`` and ``browse(url)``, under the rules of the network."""
        self._check_open()
        from casemate.tools.connections.own import calling_requester
        from casemate.web.web import Web

        def hosts() -> HostRules | None:
            calling = calling_requester()
            return self._context.hosts if calling is None else calling.hosts

        return Web(lambda: self._context, hosts, self._turn, self._namespace, self._policy.web)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """A slot of an open sandbox; for code in a cell, which holds one, an inner slot. Raises ``QueueFull``."""
        from casemate.tools.connections.own import calling_requester

        async with self._inner_slots if calling_requester() is not None else self._slot():
            self._check_open()
            yield

    def _note_finished(self, execution: Execution) -> None:
        self._tally.add(execution)
        if execution.artifacts or execution.full_output is not None:
            self.artifacts.keep(execution)
        else:
            self._without_files.append(execution.id)

    def _count(self) -> Stats:
        """Count the current activity. Can be called from any thread, and may block."""
        from casemate.execution.overview import stats

        made = vars(self)
        sessions = len(self.sessions) if "sessions" in made else 0
        approvals = self.approvals.pending_count if "approvals" in made else 0
        queue = *self._slots.counts(self._namespace), self._slots.most
        return stats(self._wall, queue, sessions, approvals, self._tally)

    def _where_bound(self, name: str) -> str:
        """Where the policy sets the limit ``name`` in force; empty if it does not."""
        return self._policy.where_bound(name, getattr(self._context.limits, name))

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosed("the sandbox was closed")

    async def close(self) -> None:
        """End everything that this sandbox started. It takes a bounded time, and can be called twice."""
        from casemate.event_loop import forget_at_exit
        from casemate.execution.threads import to_thread_to_end

        self._closed = True
        forget_at_exit(self)
        SANDBOXES.discard(self)
        made = dict(vars(self))
        for name in ("egress", "host", "web"):  # so that their next use raises
            vars(self).pop(name, None)
        async with contextlib.AsyncExitStack() as closing:  # in reverse, each even if another one fails
            closing.callback(self._log.close)
            for name in ("artifacts", "packages", "approvals", "tools", "host"):
                if name in made:
                    closing.push_async_callback(to_thread_to_end, made[name].close)
            closing.push_async_callback(to_thread_to_end, self._context.sandbox_network.close)
            for name in ("_background", "_wall", "_previews", "web", "sessions"):
                if name in made:
                    closing.push_async_callback(made[name].close)


def _needed_by_python(environment: Environment) -> tuple[Entry, ...]:
    """What programs see for Python's interpreter; casemate itself makes any later environments."""
    with contextlib.suppress(CasemateError):  # the program's own run reports it
        return runtime_for("python").launch(environment, "", ()).entries
    return ()


def _definitions_in(tools: object) -> Mapping[str, Mapping[str, Any]]:
    if tools is None:
        return {}
    from casemate.tools.files import definitions_of

    return definitions_of(tools)


def _indexes_in(addresses: Sequence[str]) -> tuple[Index, ...]:
    if not addresses:
        return ()
    from casemate.packages.indexes import check_indexes

    return check_indexes(addresses)


def _end_cell(emitter: Emitter | None) -> bool:
    """End the cell. Returns whether there was one."""
    if emitter is None or emitter.end_cell is None:
        return False
    emitter.end_cell()
    return True
