"""Asks the person at the client with a form of the client's own (MCP elicitation).

Hostile programs choose what is shown: it is escaped, and what does not fit is counted. Answers are judged strictly:
only the exact words allow, and an answer counts only for the question whose hash was shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
)
from pydantic import ValidationError

from casemate.errors import CasemateError
from casemate.policy.shown import escape_text, request_text, shown_value
from casemate.surfaces.mcp.callers import questions_in

if TYPE_CHECKING:
    from casemate.surfaces.mcp.callers import Call, Document, Work

ONCE = "allow once"
RUN = "allow for this run"
SESSION = "allow for this session"
DENY = "deny"
_SCOPES = {ONCE: "once", RUN: "run", SESSION: "session"}
_ONLY_ONCE = ("package", "server", "plan")  # kinds that are decided once
_LONGEST_REASON = 500  # characters


@dataclass(frozen=True, slots=True)
class Question:
    """An approval request as the operator sees it (``approvals.pending``)."""

    document: Document

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def hash(self) -> str:
        return str(self.document.get("hash", ""))

    @property
    def url(self) -> str:
        url = self.document["arguments"].get("url") if self._is_form else None
        return url if isinstance(url, str) else ""

    @property
    def _is_form(self) -> bool:
        return self.document.get("kind") == "elicitation"

    def request(self) -> ElicitRequest:
        """The request that the client shows."""
        if self.url:
            return ElicitRequest(
                params=ElicitRequestURLParams(message=self.message, url=self.url, elicitation_id=self.id)
            )
        return ElicitRequest(params=ElicitRequestFormParams(message=self.message, requested_schema=dict(self.schema)))

    @property
    def schema(self) -> Mapping[str, Any]:
        if self._is_form:
            schema = self.document["arguments"].get("schema") or {}
            return {"type": "object", "properties": {}, **schema}
        choices = [ONCE]
        if self.document.get("kind") not in _ONLY_ONCE:
            choices.append(SESSION if self.document.get("session") else RUN)
        return {
            "type": "object",
            "properties": {
                "answer": {"type": "string", "title": "Answer", "enum": [*choices, DENY]},
                "reason": {
                    "type": "string",
                    "title": "Reason",
                    "description": "Sent to the program. Optional.",
                    "maxLength": _LONGEST_REASON,
                },
            },
            "required": ["answer"],
        }

    @property
    def message(self) -> str:
        """Text in which no program can begin a line."""
        asked, arguments = self.document, self.document.get("arguments") or {}
        if self._is_form:
            server, tool = shown_value(asked.get("server", "")), shown_value(asked.get("tool", ""))
            text = escape_text(str(arguments.get("message", "")))
            return f"The MCP server {server}, whose tool {tool} a program has called, asks: {text}"
        named = {name: str(asked.get(name, "")) for name in ("kind", "server", "tool", "summary")}
        return request_text("A program in casemate's sandbox", arguments=arguments, **named)

    def decision(self, answer: ElicitResult) -> dict[str, Any]:
        """The answer as arguments of ``approvals.decide``."""
        content = answer.content if isinstance(answer.content, dict) else {}
        denied: dict[str, Any] = {"request": self.id, "allow": False}
        if answer.action != "accept":
            word = "declined" if answer.action == "decline" else "dismissed"
            return {**denied, "reason": f"{word} by the user"}
        if self._is_form:
            return {"request": self.id, "allow": True, "content": content}
        reason = content.get("reason")
        told = {"reason": reason[:_LONGEST_REASON]} if isinstance(reason, str) else {}
        chosen = content.get("answer")
        if chosen in _SCOPES and chosen in self.schema["properties"]["answer"]["enum"]:
            return {"request": self.id, "allow": True, "scope": _SCOPES[str(chosen)], **told}
        return {**denied, **told}


def questions(call: Call, waiting: Iterable[Document]) -> list[Question]:
    """The requests in ``waiting`` that this client can show."""
    asked = [Question(one) for one in waiting]
    return [one for one in asked if call.can_ask("url" if one.url else "form")]


async def answer_asked(call: Call) -> None:
    """Decide the questions of a call that comes back: those that still wait and are as they were shown."""
    responses = call.params.input_responses or {}
    assert call.resumed is not None
    for question in questions(call, await call.caller.pending()):
        answered = responses.get(question.id)
        if isinstance(answered, ElicitResult) and call.resumed.asked.get(question.id) == question.hash:
            await call.caller.decide(question.decision(answered))


async def ask_now(call: Call, question: Question, work: Work, seen: frozenset[str]) -> None:
    """Ask within the call (before 2026-07-28), until the request is decided here or elsewhere, or the call's time is
    over. An unanswered request stays pending."""

    async def until_settled() -> None:
        waiting = seen
        while call.seconds_left > 0:
            waiting = questions_in(await work.wait(min(1.0, call.seconds_left), waiting))
            if question.id not in waiting:
                break
            await call.tell("waits for your answer")
        asking.cancel_scope.cancel()

    answered: ElicitResult | None = None
    try:
        async with anyio.create_task_group() as asking:
            asking.start_soon(until_settled)
            answered = await _ask(call, question)
            asking.cancel_scope.cancel()
    except* (MCPError, ValidationError):
        answered = None  # the client cannot ask after all
    except* CasemateError as errors:
        raise errors.exceptions[0] from None
    if answered is not None:
        await call.caller.decide(question.decision(answered))  # no effect if another approver was faster


async def _ask(call: Call, question: Question) -> ElicitResult:
    session, request = call.context.session, call.context.request_id
    if question.url:
        return await session.elicit_url(question.message, question.url, question.id, related_request_id=request)
    return await session.elicit_form(question.message, dict(question.schema), related_request_id=request)
