"""Asking the person at the client, in a form of the client's own (MCP elicitation).

What is shown comes from a hostile program: it is escaped, and what does not fit is counted. What comes back is judged
strictly: only the exact words that allow do, and an answer counts for the question whose hash was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
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

if TYPE_CHECKING:
    from casemate.surfaces.mcp.callers import Call, Document, Work

ONCE = "allow once"
RUN = "allow for this run"
SESSION = "allow for this session"
DENY = "deny"
_SCOPES = {ONCE: "once", RUN: "run", SESSION: "session"}
_ONLY_ONCE = ("package", "server", "plan")  # what is decided once and for all
_LONGEST_REASON = 500  # characters


@dataclass(frozen=True, slots=True)
class Question:
    """A request for an approval as the operator sees it (``approvals.pending``)."""

    document: Document

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def hash(self) -> str:
        return str(self.document.get("hash", ""))

    @property
    def url(self) -> str:
        """Where the user is sent, of a tool's server that asks for that."""
        url = self.document["arguments"].get("url") if self._is_form else None
        return url if isinstance(url, str) else ""

    @property
    def _is_form(self) -> bool:
        return self.document.get("kind") == "elicitation"

    def request(self) -> ElicitRequest:
        """What the client shows."""
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
                    "description": "Told to the program. May be left out.",
                    "maxLength": _LONGEST_REASON,
                },
            },
            "required": ["answer"],
        }

    @property
    def message(self) -> str:
        """Lines in which nothing of a program's can begin a line."""
        asked, arguments = self.document, self.document.get("arguments") or {}
        if self._is_form:
            server, tool = shown_value(asked.get("server", "")), shown_value(asked.get("tool", ""))
            text = escape_text(str(arguments.get("message", "")))
            return f"The MCP server {server}, whose tool {tool} a program has called, asks: {text}"
        named = {name: str(asked.get(name, "")) for name in ("kind", "server", "tool", "summary")}
        return request_text("A program in casemate's sandbox", arguments=arguments, **named)

    def decision(self, answer: ElicitResult) -> dict[str, Any]:
        """The arguments of ``approvals.decide`` that an answer means."""
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


async def questions(call: Call, wanted: frozenset[str]) -> list[Question]:
    """Those of ``wanted`` that still wait and that this client can show."""
    person = call.caller.person
    if person is None or not wanted:
        return []
    waiting = [Question(one) for one in await person("approvals.pending", {}) if one["id"] in wanted]
    return [one for one in waiting if call.can_ask("url" if one.url else "form")]


async def answer(call: Call, question: Question, answered: ElicitResult) -> None:
    """Decide as the person did. That somebody else was faster is no error."""
    assert call.caller.person is not None
    await call.caller.person("approvals.decide", question.decision(answered))


async def answer_asked(call: Call) -> None:
    """Decide what was asked in the call that comes back: each question that still waits, and is what was shown."""
    responses = call.params.input_responses or {}
    assert call.resumed is not None
    asked = call.resumed.asked
    for question in await questions(call, frozenset(asked)):
        answered = responses.get(question.id)
        if isinstance(answered, ElicitResult) and asked[question.id] == question.hash:
            await answer(call, question, answered)


async def ask_now(call: Call, question: Question, work: Work, seen: frozenset[str]) -> None:
    """Ask within the call (before 2026-07-28), until somebody has answered here or elsewhere, or the call must be
    answered itself. What was not answered goes on waiting."""

    async def until_settled() -> None:
        waiting = seen
        while call.seconds_left > 0:
            waiting = (await work.wait(min(1.0, call.seconds_left), waiting)).awaited_ids
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
        answered = None  # the client cannot after all
    except* CasemateError as errors:
        raise errors.exceptions[0] from None
    if answered is not None:
        await answer(call, question, answered)


async def _ask(call: Call, question: Question) -> ElicitResult:
    session, request = call.context.session, call.context.request_id
    if question.url:
        return await session.elicit_url(question.message, question.url, question.id, related_request_id=request)
    return await session.elicit_form(question.message, dict(question.schema), related_request_id=request)
