"""What an execution needs of the sandbox that it runs in, and how many executions came to which end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from casemate.errors import Denied
from casemate.execution.admit import AdmittedRequest, SandboxBounds, admit

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.approvals.requester import Requester
    from casemate.audit.log import AuditLog
    from casemate.execution.network import CellNetwork, Offer, SandboxNetwork
    from casemate.languages.runtime import Environment, Runtime
    from casemate.model.execution import Execution
    from casemate.model.limits import Limits
    from casemate.model.plan import Request
    from casemate.policy.hosts import HostRules
    from casemate.previews.gateway import PreviewGateway
    from casemate.walls.wall import Wall
    from casemate.workspace.guarding import Guard


async def _at_once() -> None:
    """There is nothing to wait for."""


def no_previews() -> PreviewGateway:
    """Raises ``Denied``."""
    raise Denied("servers of sessions are shown to nobody here: the policy says previews: false")


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionContext:
    """``runtime_for``: the runtime of a language by its name; ``environment``: where its packages come from;
    ``preload``: modules to load ahead, None for the usual; ``approvals``: made when first wanted; ``hosts``: what cells
    may reach, and ``outside`` the way there; None where they may reach none; ``offers``: what the host has in each cell
    itself, now, and ``step_offers`` besides in a step of a session (given whether its events are followed); ``layer``:
    the folders of packages that all cells see, each with its place there; ``ready``: waits for those that the
    sandbox was asked for; ``asks``: somebody may be asked, else only rules decide; ``keeps``: what a run changes in the
    caller's folder is applied to it; ``finished``: is told of each execution that came to its end; ``guard``: what of
    a caller's folder is hidden from cells, None where there is no folder; ``sign``: signs what came of an
    execution; ``previews``: where servers of sessions are shown, or it raises ``Denied``."""

    wall: Wall
    log: AuditLog
    approvals: Callable[[], Approvals]
    limits: Limits
    runtime_for: Callable[[str], Runtime]
    environment: Environment
    preload: tuple[str, ...] | None
    workspace: Path | None
    workspace_mode: Literal["overlay", "direct", "review"]
    output_dir: Path | None
    sandbox_network: SandboxNetwork
    hosts: HostRules | None
    offers: Callable[[], tuple[Offer, ...]] = tuple
    step_offers: Callable[[bool], tuple[Offer, ...]] = lambda _: ()
    layer: Callable[[], tuple[tuple[Path, str], ...]] = tuple
    ready: Callable[[], Awaitable[None]] = _at_once
    asks: bool = True
    keeps: bool = True
    finished: Callable[[Execution], None] = lambda _: None
    guard: Guard | None = None
    policy_sha256: Callable[[], str] = str
    sign: Callable[[Execution], dict[str, Any]] | None = None
    previews: Callable[[], PreviewGateway] = no_previews

    def admit(self, request: Request, *, stream: bool) -> AdmittedRequest:
        """Whether ``request`` may run, and within which bounds. ``stream``: its events are followed, so that whoever
        does that can be asked. Raises ``InvalidArgument``."""
        return admit(request, SandboxBounds(self.limits, self.hosts), can_ask=self.may_ask(stream=stream))

    def may_ask(self, *, stream: bool) -> bool:
        """Whether somebody may be asked for a host that no rule covers."""
        return self.hosts is not None and self.approvals().may_ask("egress", stream=stream)

    async def open_step(self, cell_network: CellNetwork, requester: Requester, *, stream: bool) -> None:
        """Open a session's network as far as a step of ``requester``'s may use it; ``stream``: its events are
        followed."""
        offers = (*self.offers(), *self.step_offers(stream))
        await cell_network.step(requester, offers, asks=self.may_ask(stream=stream))


class Tally:
    """Counts executions: ``by_status``, and ``cpu_seconds`` and ``peak_memory`` (bytes, of the largest) of all. Used in
    one event loop. ``since``: Unix time."""

    def __init__(self) -> None:
        self.since = time.time()
        self.by_status: Counter[str] = Counter()
        self.cpu_seconds = 0.0
        self.peak_memory = 0

    def add(self, execution: Execution) -> None:
        """One more that came to its end."""
        self.by_status[execution.status] += 1
        self.cpu_seconds += execution.usage.cpu_seconds
        self.peak_memory = max(self.peak_memory, execution.usage.peak_memory)

    def before(self, further: Callable[[Execution], None]) -> Callable[[Execution], None]:
        """What is told of an execution, counts it and tells ``further``."""

        def add_and_hand_on(execution: Execution) -> None:
            self.add(execution)
            further(execution)

        return add_and_hand_on
