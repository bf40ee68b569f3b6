"""What an execution needs of the sandbox it runs in: the rooms, opened and handed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from casemate.execution.admit import Bounds
from casemate.execution.network import Outside
from casemate.isolation.wall import Wall
from casemate.model.limits import Limits
from casemate.policy.hosts import HostRules
from casemate.runtimes.runtime import Environment, Runtime

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals


class Log(Protocol):
    """The audit record, as the steps use it. Raises ``RecordUnavailable``."""

    def intent(self, execution_id: str, namespace: str, detail: dict[str, Any], *, wait: bool = True) -> bool:
        """Write the row before an execution. Without ``wait``, False where that would take time."""
        ...

    def outcome(self, execution_id: str, namespace: str, detail: dict[str, Any], *, wait: bool = True) -> bool:
        """Write the row after it, in the same way."""
        ...

    def decision(self, execution_id: str, namespace: str, detail: dict[str, Any], *, wait: bool = True) -> bool:
        """Write a row about something that wanted to cross the wall, in the same way."""
        ...


@dataclass(frozen=True, slots=True)
class House:
    """``runtime_for``: the runtime of a language by its name; ``environment``: where its packages come from;
    ``preload``: modules to load ahead, None for the usual; ``approvals``: made when first wanted; ``hosts``: what cells
    may reach, and ``outside`` the way there; ``can_ask``: somebody may be asked for a host that no rule covers."""

    wall: Wall
    log: Log
    approvals: Callable[[], Approvals]
    limits: Limits
    runtime_for: Callable[[str], Runtime]
    environment: Environment
    preload: tuple[str, ...] | None
    workspace: Path | None
    workspace_mode: Literal["overlay", "direct"]
    output_dir: Path | None
    outside: Outside
    hosts: HostRules
    can_ask: bool = False

    @property
    def bounds(self) -> Bounds:
        """The most that any run may have."""
        return Bounds(self.limits, self.hosts, self.can_ask)
