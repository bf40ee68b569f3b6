"""Installs packages from the operator's index into a package set. A separate cell fetches and unpacks them.

    requirements -> cell (installer, gateway) -> served files and installed packages -> approval -> package set

One approval request covers exactly the files that went into the cell, with name, version, address and hash. No code in
them has run by then, unless they were built there, and nothing leaves the cell before the decision.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.egress.accepting import accept
from casemate.errors import Fault
from casemate.execution.collect import Collected
from casemate.execution.context import Folder, Planned, Supplies
from casemate.execution.plan import plan as make_plan
from casemate.execution.record import record_execution
from casemate.execution.request import make_request
from casemate.execution.run import Begun, Finished, open_requester, run
from casemate.execution.seal import seal
from casemate.execution.threads import to_thread_to_end
from casemate.files.bounds import TreeBounds
from casemate.model.approval import ApprovalVerdict, Question
from casemate.model.limits import format_size
from casemate.model.overview import Installed, InstalledPackage, InstallTerms
from casemate.model.plan import PROXY_ADDRESS, ListeningSocket
from casemate.packages.gateway import Gateway
from casemate.packages.names import Requirement
from casemate.packages.needs import label_of, needed_by
from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.apply import apply
from casemate.workspace.rules import FolderRules

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.execution.context import ExecutionContext
    from casemate.languages.node.installer import NodeInstaller
    from casemate.languages.python.installer import PythonInstaller
    from casemate.model.execution import Cause
    from casemate.model.isolation import IsolationReport
    from casemate.model.kinds import Effect
    from casemate.packages.store import PackageStore
    from casemate.walls.wall import Cell

_PORT = 80
_BLOCK = 4096
_BOUNDS = TreeBounds(files=100_000, file_bytes=1 << 30, total_bytes=4 << 30, depth=64, entries=200_000, reports=20)
_MOST_REASON = 1000  # characters
_MOST_OUTPUT = 20_000  # characters of what the installer printed, from its end
_RULES = FolderRules(protection=None)  # only cells read a package set, so no name in it needs protection


@dataclass(frozen=True, slots=True)
class Order:
    requirements: tuple[Requirement, ...]
    terms: InstallTerms
    installer: PythonInstaller | NodeInstaller
    namespace: str


async def install(order: Order, context: ExecutionContext, gateway: Gateway, requester: Requester) -> Installed:
    """Add the packages of ``order`` to its package set if that is approved. Raises ``CasemateError`` for failures that
    the packages did not cause."""
    wanted = tuple(one.name for one in order.requirements)
    names = LookedUp(context, requester, order.installer.language, wanted)
    if denial := await names.find_denial(gateway.upstream.is_local):
        return Installed("denied", reason=denial)
    gateway.refusal = names.find_refusal
    report = await context.wall.prove()
    planned = _plan(order, context, requester.session, report)
    async with record_execution(planned) as record:
        finished = await _run(planned, gateway)
        try:
            finished.capture.errno = finished.capture.errno or _errno_in(finished.capture.transcript.text_of("stderr"))
            execution = seal(Collected(finished))
            output = execution.text[-_MOST_OUTPUT:]
            record.note_execution(execution)
            if execution.ok:
                installed = await _keep(order, finished, gateway, requester)
            else:
                said = _explain(execution.cause, finished) if execution.cause else _last_line(execution.stderr)
                installed = Installed("failed", reason="; ".join([*gateway.problems, said]))
        finally:
            os.close(finished.ending.tree_fd)
        assert record.outcome is not None
        record.outcome["installation"] = installed.status
        record.outcome["packages"] = [asdict(package) for package in installed.packages]
        record.outcome["reason"] = installed.reason
    return replace(installed, output=output)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Decides which package names an index may see: those that the application names or that a rule or an approver
    allows, and their dependencies, unless a rule denies one."""

    context: ExecutionContext
    requester: Requester
    language: str
    wanted: tuple[str, ...]

    def _judge(self, name: str, **about: object) -> Effect:
        question = self._question([name])
        question = self.requester.bind(replace(question, arguments={**question.arguments, **about}))
        return self.context.approvals().rules.judge_name(question, time.monotonic())

    def find_refusal(self, name: str) -> str:
        """Why the installer may not request a dependency; empty if it may."""
        return "it is denied by a rule" if self._judge(name, needed_by={name: self.wanted}) == "deny" else ""

    async def find_denial(self, is_local: bool) -> str:
        """Why the index may not see the wanted names; empty if it may. ``is_local``: the index is on this machine."""
        if denied := [name for name in self.wanted if self._judge(name) == "deny"]:
            return f"{', '.join(denied)}: denied by a rule, so no index is asked"
        if is_local:
            return ""
        if self.context.hosts is None:
            return "this sandbox has no network, so no index is asked"
        asked = [name for name in self.wanted if self.requester.is_code and self._judge(name) == "ask"]
        if not asked:
            return ""
        verdict = await asyncio.wrap_future(self.requester.decide(self._question(asked)))
        return "" if verdict.allow else verdict.reason or "it was asked for and not approved"

    def _question(self, names: list[str]) -> Question:
        summary = f"look up {', '.join(names)} at the index, which sees the name{'s' * (len(names) > 1)}"
        return Question("package", summary, {"packages": names, "language": self.language})


def _plan(order: Order, context: ExecutionContext, session: str | None, report: IsolationReport) -> Planned:
    """Plan the cell. It has none of the caller's files, and its only way out is the gateway's socket."""
    installer = order.installer
    names = [one.text for one in order.requirements]
    told, arguments, shown = installer.order(order.requirements, order.terms, context.environment)
    request = make_request(
        installer.program, installer.language, timeout=order.terms.timeout, stdin=json.dumps(told), arguments=arguments,
        namespace=order.namespace, metadata={"install": names},
    )  # fmt: skip
    request = replace(request, session=session)
    alone = replace(context, folder=Folder(), hosts=None, supplies=Supplies())
    admitted = alone.admit(request, stream=False)
    plan = make_plan(admitted, alone, None)
    listeners = (ListeningSocket("tcp", PROXY_ADDRESS, _PORT),)
    plan = replace(plan, entries=(*plan.entries, *shown), listeners=listeners)
    return Planned(alone, request, admitted, plan, report)


async def _run(planned: Planned, gateway: Gateway) -> Finished:
    serving: list[asyncio.Task[None]] = []
    is_over = asyncio.Event()

    def serve(begun: Begun) -> None:
        serving.append(asyncio.get_running_loop().create_task(_serve_gateway(begun.cell, gateway, is_over)))

    try:
        async with open_requester(planned.context, planned.request, None) as requester:  # the cell sends no requests
            return await run(planned, planned.context.wall.start, requester, begun=serve)
    finally:
        is_over.set()
        for task in serving:
            await task


async def _serve_gateway(cell: Cell, gateway: Gateway, is_over: asyncio.Event) -> None:
    """Serve the gateway in the cell until ``is_over``. Without the cell's socket the cell is ended."""
    sockets = asyncio.wrap_future(cell.listeners())
    await asyncio.wait([sockets])
    if sockets.cancelled() or sockets.exception() is not None:
        cell.kill("cancelled")
        return
    (listener,) = sockets.result()
    async with gateway.serve_at(socket.socket(fileno=listener), accept):
        await is_over.wait()


async def _keep(order: Order, finished: Finished, gateway: Gateway, requester: Requester) -> Installed:
    """Move what the cell installed to the package set, if the gateway served exactly that and it is approved."""
    new = await asyncio.to_thread(order.installer.package_set.begin)
    problem = await to_thread_to_end(_take, finished.ending.tree_fd, new)
    if problem:
        return Installed("failed", reason=problem)
    found, strangers = await asyncio.to_thread(order.installer.match_files, new, gateway.served)
    if strangers:
        return Installed("failed", reason=f"the cell left packages that no file was served for: {', '.join(strangers)}")
    if found:
        texts = [one.text for one in order.requirements]
        store, language = gateway.upstream.store, order.installer.language
        verdict = await permission(requester, texts, found, store, language=language, built=order.terms.sources)
        if not verdict.allow:
            return Installed("denied", reason=verdict.reason or "it was asked for and not approved")
    try:
        await to_thread_to_end(order.installer.publish, new, order.requirements)
    except OSError as error:
        raise Fault(f"the packages could not be kept: {error}") from error
    return Installed("installed", found)


def _take(tree: int, new: Path) -> str:
    """Copy regular files, folders and inner links, within bounds and without setuid bits. Returns what was refused."""
    workspace = installed = folder = -1
    try:
        workspace = open_folder(tree, b"workspace", unlock=True)
        installed = open_folder(workspace, b"layer", unlock=True)
        folder = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        applied = apply(installed, folder, bounds=_BOUNDS, rules=_RULES, marks=None, seconds=300)
    except OSError as error:
        return f"what was installed cannot be read: {error.strerror}"
    finally:
        for fd in (workspace, installed, folder):
            if fd >= 0:
                os.close(fd)
    return "; ".join(f"{one.name}: {one.reason}" for one in applied.skipped)


async def permission(
    requester: Requester,
    requested: list[str],
    found: tuple[InstalledPackage, ...],
    store: PackageStore,
    *,
    language: str = "python",
    built: bool = False,
) -> ApprovalVerdict:
    """Request approval to install exactly ``found``. ``built``: some may have been built from source."""
    question = _question(requested, found, language, built=built)
    if above := await asyncio.to_thread(needed_by, found, requested, language, store):
        question = replace(question, arguments={**question.arguments, "needed_by": above})
    return await asyncio.wrap_future(requester.decide(question))


def _question(requested: list[str], found: tuple[InstalledPackage, ...], language: str, *, built: bool) -> Question:
    names = [label_of(one, language) for one in found]
    shown = ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:10])} and {len(names) - 10} more"
    files = [{"file": one.file, "source": one.source, "sha256": one.sha256, "bytes": one.size} for one in found]
    arguments = {
        "packages": names,
        "language": language,
        "requested": requested,
        "files": files,
        **({"built": True} if built else {}),
    }
    return Question("package", f"install {shown}", arguments)


_OF_LIMITS = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.EAGAIN)


def _errno_in(text: str) -> int | None:
    """The errno of a limit in an installer's output. Its exit code does not tell, and it cleans up before it exits."""
    return next((one for one in _OF_LIMITS if os.strerror(one) in text or errno.errorcode[one] in text), None)


def _explain(cause: Cause, finished: Finished) -> str:
    """Which limit was met. After the installer's clean-up it may have been bytes or inodes."""
    limits = finished.planned.plan.limits
    if cause.code == "disk_limit" and finished.ending.space_left >= _BLOCK:
        met = f"limits.disk is {format_size(limits.disk)} and limits.inodes is {limits.inodes}"
        return f"No more could be written; {met}. Raise the one that was met."
    return f"{cause.message} {cause.remediation}"


def _last_line(text: str) -> str:
    """The installer's first error and its causes, in its own words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith(("ERROR", "error", "npm error", "npm ERR!"))), "")
    causes = [line for line in lines if line.startswith(("cause:", "npm error", "npm ERR!")) and line != error]
    told = " ".join([error, *causes]) if error else (lines or ["the installer failed and did not say why"])[-1]
    return told[:_MOST_REASON]
