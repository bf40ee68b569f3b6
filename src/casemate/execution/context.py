"""What an execution needs from its sandbox, and the counts of finished executions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from casemate.errors import CasemateError, Denied
from casemate.execution.admit import AdmittedRequest, admit
from casemate.model.limits import OUTPUT_LIMITS

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.audit.log import AuditLog
    from casemate.execution.capture import Emitter
    from casemate.execution.network import CellInterception, Offer, SandboxNetwork
    from casemate.languages.runtime import Environment
    from casemate.model.execution import Crossing, Execution
    from casemate.model.isolation import IsolationReport
    from casemate.model.limits import Limits
    from casemate.model.plan import Plan, Request
    from casemate.policy.hosts import HostRules
    from casemate.previews.gateway import PreviewGateway
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import Wall
    from casemate.workspace.guarding import Guard


async def _at_once() -> None:
    """Wait for nothing."""


def no_previews() -> PreviewGateway:
    """Raise ``Denied``."""
    raise Denied("servers of sessions cannot be shown here: the policy says previews: false")


@dataclass(frozen=True, slots=True)
class Folder:
    """The caller's folder, and the folder for artifacts. Without a path each cell has a private workspace."""

    path: Path | None = None
    mode: Literal["overlay", "direct", "review"] = "overlay"
    output: Path | None = None  # gets copies of artifacts
    guard: Guard | None = None  # decides which files are hidden from programs or protected
    keeps: bool = True  # whether a run's changes are applied to the folder


@dataclass(frozen=True, slots=True)
class Supplies:
    offers: Callable[[], tuple[Offer, ...]] = tuple  # the current host services
    step_offers: Callable[[bool], tuple[Offer, ...]] = lambda _: ()  # more for a step, given whether it is followed
    layer: Callable[[], tuple[tuple[Path, str], ...]] = tuple  # package folders, each with its path in a cell
    ready: Callable[[], Awaitable[None]] = _at_once  # waits for the packages that the sandbox was made with


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionContext:
    wall: Wall
    log: AuditLog
    approvals: Callable[[], Approvals]  # made on first use
    limits: Limits  # the maximum for a run
    hosts: HostRules | None  # hosts that cells may reach; None without a network
    sandbox_network: SandboxNetwork
    environment: Environment  # the interpreter of Python programs, with its packages
    preload: tuple[str, ...] | None  # modules to load in advance; None for the defaults
    folder: Folder = Folder()
    supplies: Supplies = Supplies()
    asks: bool = True  # whether approvers may decide; otherwise only rules do
    finished: Callable[[Execution], None] = lambda _: None  # called with each finished execution
    policy_sha256: Callable[[], str] = str
    sign: Callable[[Execution], dict[str, Any]] | None = None  # signs a statement about an execution
    previews: Callable[[], PreviewGateway] = no_previews  # shows servers of sessions

    def admit(self, request: Request, *, stream: bool) -> AdmittedRequest:
        """Admit ``request``. ``stream``: a consumer of its events can approve. Raises ``InvalidArgument``."""
        return admit(request, self.limits, self.hosts, can_ask=self.may_ask(stream=stream))

    def may_ask(self, *, stream: bool) -> bool:
        """Whether an approver may decide on a host that no rule covers."""
        return self.hosts is not None and self.approvals().may_ask("egress", stream=stream)

    def for_own_program(self, limits: Limits) -> ExecutionContext:
        """This sandbox for one of casemate's own programs, with nothing from the caller. It has ``limits``, narrowed by
        those of the sandbox, except for output: an answer that is cut cannot be read."""
        output = {name: getattr(limits, name) for name in OUTPUT_LIMITS}
        narrowed = replace(self.limits.narrowed(limits), **output)
        return replace(self, limits=narrowed, folder=Folder(), supplies=Supplies(), finished=lambda _: None)


@dataclass(frozen=True, slots=True)
class Planned:
    context: ExecutionContext
    request: Request
    admitted: AdmittedRequest  # for a step: its session's
    plan: Plan
    report: IsolationReport  # the wall's proof
    intercepted: CellInterception | None = None  # the plan was made with it
    redaction: Redaction | None = None  # of its secrets
    emitter: Emitter | None = None  # gets its events if they are followed

    def note_crossing(self, crossing: Crossing) -> None:
        """Record ``crossing`` at once if possible; the outcome row has it in any case. Callable from any thread."""
        from casemate.execution.request import redacted_crossings

        (redacted,) = redacted_crossings([crossing], self.redaction)
        with suppress(CasemateError):
            self.context.log.append("crossing", self.request.id, self.request.namespace, asdict(redacted))


class Tally:
    """Counts of finished executions. For one event loop."""

    def __init__(self) -> None:
        self.since = time.time()
        self.by_status: Counter[str] = Counter()
        self.cpu_seconds = 0.0
        self.peak_memory = 0  # bytes, of the largest

    def add(self, execution: Execution) -> None:
        """Count a finished execution."""
        self.by_status[execution.status] += 1
        self.cpu_seconds += execution.usage.cpu_seconds
        self.peak_memory = max(self.peak_memory, execution.usage.peak_memory)
