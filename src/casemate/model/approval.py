"""Questions before something crosses the wall, and their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from casemate.errors import InvalidArgument
from casemate.model.call_options import DecisionOptions, Scope
from casemate.model.options import complete, takes_options
from casemate.model.shown import Shown

if TYPE_CHECKING:
    from casemate.model.showing import Summary

Kind = Literal[
    "tool", "egress", "package", "shell", "process", "host", "files", "server", "plan", "elicitation", "secret"
]
Listed = Literal["asked", "withdrawn"]  # states of a listed request (approvals/requests.py has all states)


@dataclass(frozen=True, slots=True)
class Question:
    """Something that wants to cross the wall."""

    kind: Kind
    summary: str
    arguments: Mapping[str, Any]  # resolved, canonical JSON values: what rules match, people see, and casemate acts on
    # The requester fills in namespace, session, run and agent.
    namespace: str = ""
    session: str | None = None  # None for a run without a session
    run: str = ""
    server: str = ""  # for tool calls, like `tool` and `schema`
    tool: str = ""
    schema: str = ""  # a hash of the tool's definition
    # The lists of the run or the sandbox that lack its host, as written: then only a person may allow it, no rule.
    beyond: tuple[str, ...] = ()
    agent: str = ""  # the agent that asks; empty for other callers
    line: int | None = None  # reported by the program: only to be shown


BY_RULE = "a rule of the policy can allow it"  # in the reason of a denial; the broker appends the rule


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to an approval request. Only ``allow=True`` allows it.

    The other fields are those of :class:`casemate.model.call_options.DecisionOptions`.

    Raises:
        InvalidArgument: A scope, uses, expires or reason is invalid.
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
            raise InvalidArgument("uses", f"{self.uses!r} is not an integer of at least 1, or None")
        if self.expires is not None and not _is_positive(self.expires):
            raise InvalidArgument("expires", f"{self.expires!r} is not a positive number of seconds, or None")
        if not isinstance(self.reason, str):
            raise InvalidArgument("reason", f"{self.reason!r} is not a str")


@dataclass(frozen=True, slots=True)
class ApprovalVerdict:
    """The decision on a question."""

    allow: bool
    by: str  # the rule, and where it is written, or the channel
    reason: str = ""
    content: Mapping[str, Any] | None = None
    scope: str = ""  # from an approver's :class:`Decision`, like `expires`
    expires: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ApprovalRequest(Shown):
    """A question that must be answered before something crosses the wall.

    Attributes:
        kind: ``tool``, ``egress``, ``package``, ``shell``, ``process``, ``host``, ``files``, ``server``, ``plan``,
            ``elicitation`` or ``secret``.
        server: For tool calls.
        tool: For tool calls.
        session: None for a run without a session.
        hash: SHA-256 of exactly what is shown (kind, server, tool, its definition, arguments), and of the lists of
            hosts that it exceeds. A decision applies to this hash.
        caller: The caller that started the run, if a surface knows it.
        asked: When it was first shown to an approver (Unix time); 0 if unknown.
        expires: When it is denied unless it is answered; None for never.
        line: The line of the program that asks, as the program says: never believe it. No rule uses it.
        state: ``"asked"`` while a program waits for the answer; ``"withdrawn"`` if it no longer waits: an answer then
            applies the next time that the same caller asks for exactly the same.
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
    asked: float = 0.0
    expires: float | None = None
    line: int | None = None
    _answer: Callable[[Decision], bool] | None = field(default=None, repr=False, compare=False)

    @takes_options(DecisionOptions)
    async def approve(self, **options: Unpack[DecisionOptions]) -> bool:
        """Allow it. The arguments are those of :class:`casemate.Decision`. Can be called from any event loop or thread.

        False if this is too late: the request was answered, timed out, or its program is over.

        Raises:
            InvalidArgument: An argument is invalid; the request stays pending.
        """
        return self._decide(Decision(True, **complete(DecisionOptions, options, "approve")))

    async def deny(self, reason: str = "") -> bool:
        """Deny it. The program gets the ``reason``. False as for :meth:`approve`."""
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
    """Allow everything: ``Sandbox(approve=casemate.allow_all)``. Everything that no rule denies may cross without a
    question, except hosts beyond a list that was given for the run, the session or the sandbox.

    This is the only way to switch approval off. Each result notes it in ``isolation.notes``.
    """
    return True


def _is_positive(number: object) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and math.isfinite(number) and number > 0  # type: ignore[arg-type, operator]
