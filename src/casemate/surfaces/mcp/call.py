"""One call of a tool: who calls with what, what the client can do, and where its progress goes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from casemate.errors import CasemateError, InvalidArgument

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams

    from casemate.surfaces.mcp.callers import Caller, Callers


class Refused(CasemateError):
    """A tool cannot do what was asked for; the message is for the model."""

    kind = "refused"


@dataclass(frozen=True, slots=True)
class Resumed:
    """A call that was answered with questions, and comes back: ``work`` is what waits for them; ``asked`` has the hash
    of what was shown for each question's id; ``progress``: how far was counted."""

    work: str
    asked: Mapping[str, str]
    progress: int

    def as_text(self) -> str:
        """As text that the client hands back; the server's middleware seals it."""
        return json.dumps({"work": self.work, "asked": dict(self.asked), "progress": self.progress})


@dataclass(slots=True, eq=False)
class Call:
    """``context``: the SDK's; ``answer_within``: seconds until the call is answered, done or not."""

    caller: Caller
    callers: Callers
    arguments: Mapping[str, Any]
    context: ServerRequestContext[Any, Any]
    params: CallToolRequestParams
    answer_within: float
    began: float = field(default_factory=time.monotonic)
    resumed: Resumed | None = None
    progress: int = 0

    def __post_init__(self) -> None:
        if self.params.request_state is not None:
            self.resumed = _read_state(self.params.request_state)
            self.progress = self.resumed.progress

    @property
    def seconds_left(self) -> float:
        """Seconds until it must be answered."""
        return max(0.0, self.answer_within - (time.monotonic() - self.began))

    @property
    def is_modern(self) -> bool:
        """Whether the client asks its user between two calls (2026-07-28), rather than within one."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can_ask(self, mode: str = "form") -> bool:
        """Whether the client can ask its user, and that user's answer counts. Who names no mode means forms."""
        capabilities = self.context.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        if self.caller.person is None or elicitation is None:
            return False
        if mode == "url":
            return elicitation.url is not None
        return elicitation.form is not None or elicitation.url is None

    async def tell(self, message: str) -> None:
        """Report progress, where the client wants it: a count that only rises."""
        self.progress += 1
        await self.context.session.report_progress(self.progress, None, message)


def _read_state(state: str) -> Resumed:
    try:
        held = json.loads(state)
        return Resumed(str(held["work"]), dict(held["asked"]), int(held["progress"]))
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument("requestState", "is not of this tool") from None
