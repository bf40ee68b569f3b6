"""What is asked before something crosses the wall, and what is answered. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from casemate.errors import InvalidArgument
from casemate.model.call_options import DecisionOptions
from casemate.model.options import complete, takes_options
from casemate.model.shown import Shown

if TYPE_CHECKING:
    from casemate.model.showing import Summary

Kind = Literal[
    "tool", "egress", "package", "shell", "process", "host", "files", "server", "plan", "elicitation", "secret"
]
Scope = Literal["once", "run", "session"]
Effect = Literal["allow", "deny", "ask"]
Listed = Literal["asked", "withdrawn"]  # states of a request that is listed (approvals/requests.py has all of them)


@dataclass(frozen=True, slots=True)
class Question:
    """Something that wants to cross the wall.

    ``arguments``: JSON values, resolved and canonical: rules match them, a person is shown them, and exactly they are
    acted upon. ``session``: None for a run of its own. ``server``, ``tool`` and ``schema`` (a hash of the tool's
    definition) are of tool calls. ``beyond``: the narrower lists, of the run or of the sandbox, that do not name the
    host that it is about, as they are written; then what is written allows nothing, and a person may. Who asks leaves
    ``namespace``, ``session``, ``run`` and ``agent`` (whose it is, empty where no agent's) out: its requester fills
    them in.
    """

    kind: Kind
    summary: str
    arguments: Mapping[str, Any]
    namespace: str = ""
    session: str | None = None
    run: str = ""
    server: str = ""
    tool: str = ""
    schema: str = ""
    beyond: tuple[str, ...] = ()
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to an approval request; only ``allow=True`` allows.

    The other fields are :class:`casemate.model.call_options.DecisionOptions`.

    Raises:
        InvalidArgument: A scope, uses or expires means nothing.
    """

    allow: bool = False
    scope: Scope = "once"
    uses: int | None = None
    expires: float | None = None
    reason: str = ""
    content: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise InvalidArgument("scope", f"{self.scope!r} is not known; choose one of 'once', 'run', 'session'")
        if self.uses is not None and (type(self.uses) is not int or self.uses < 1):
            raise InvalidArgument("uses", f"{self.uses!r} is not a whole number from 1 on, or None")
        if self.expires is not None and not _is_positive(self.expires):
            raise InvalidArgument("expires", f"{self.expires!r} is not a positive number of seconds, or None")
        if not isinstance(self.reason, str):
            raise InvalidArgument("reason", f"{self.reason!r} is not a str")


@dataclass(frozen=True, slots=True)
class ApprovalVerdict:
    """What was decided about a question: ``by`` names the rule or the channel, and where a rule is written; ``scope``
    and ``expires`` are somebody's answer's, as of :class:`Decision`."""

    allow: bool
    by: str
    reason: str = ""
    content: Mapping[str, Any] | None = None
    scope: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ApprovalRequest(Shown):
    """A question that must be answered before something crosses the wall.

    Attributes:
        kind: ``tool``, ``egress``, ``package``, ``shell``, ``host``, ``files``, ``server``, ``plan``,
            ``elicitation`` or ``secret``.
        server: Of tool calls.
        tool: Of tool calls.
        session: None for a run of its own.
        run: The run or the step that asks.
        hash: SHA-256 of exactly what is shown (kind, server, tool, its definition, arguments), and of the lists of
            hosts that it is beyond; a decision binds to it.
        caller: Who has begun what asks, where a surface knows that.
        state: ``"asked"`` while something waits for the answer, ``"withdrawn"`` where what asked is gone: an answer is
            then for the next time that the same caller asks for exactly the same.
    """

    id: str
    kind: str
    summary: str
    namespace: str
    session: str | None
    run: str
    arguments: Mapping[str, Any]
    hash: str
    server: str = ""
    tool: str = ""
    caller: str = ""
    state: Listed = "asked"
    _answer: Callable[[Decision], bool] | None = field(default=None, repr=False, compare=False)

    @takes_options(DecisionOptions)
    async def approve(self, **options: Unpack[DecisionOptions]) -> bool:
        """Let it cross; the arguments are those of :class:`casemate.Decision`. From any event loop or thread.

        False when that came too late: somebody else has answered, nobody did in time, or what asked is over.

        Raises:
            InvalidArgument: An argument means nothing; the request waits on.
        """
        return self._decide(Decision(True, **complete(DecisionOptions, options, "approve")))

    async def deny(self, reason: str = "") -> bool:
        """Refuse it; ``reason`` is told to the code that asked. False as of :meth:`approve`."""
        return self._decide(Decision(reason=reason))

    def _decide(self, decision: Decision) -> bool:
        return self._answer is not None and self._answer(decision)

    def _line(self) -> str:
        return f"ApprovalRequest {self.id} {self.kind}: {self.summary}"

    def _summary(self) -> Summary:
        from casemate.model.showing import Part, Summary
        from casemate.policy.shown import request_text

        facts = (
            ("caller", self.caller),
            ("namespace", self.namespace),
            ("session", self.session or ""),
            ("run", self.run),
            ("hash", self.hash),
            ("state", self.state),
        )
        text = request_text(
            "the program", kind=self.kind, server=self.server, tool=self.tool, summary=self.summary,
            arguments=self.arguments,
        )  # fmt: skip
        return Summary(f"Approval request: {self.kind}", facts, [Part("what would cross", text)])


def allow_all(_request: ApprovalRequest) -> bool:
    """``Sandbox(approve=casemate.allow_all)``: nobody is asked, and everything that no rule denies may cross, but for
    hosts beyond a list that was given for the run, the session or the sandbox.

    The only way to switch asking off; each result says so in ``isolation.notes``.
    """
    return True


def _is_positive(number: object) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and math.isfinite(number) and number > 0  # type: ignore[arg-type, operator]
