"""Asks for approval of commands: each step of a Shell session, and the commands that an interpreter reports.

This is for people who want to see commands before they run. It is no boundary: code can start a program without asking.
That program still stays inside the wall.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from casemate.languages.session_program import COMMAND_KINDS, CommandKind
from casemate.model.approval import ApprovalVerdict, Question
from casemate.visible import begin

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.policy.rules import Rulebook
    from casemate.sessions.inbox import RunningStep
    from casemate.sessions.interpreter_cell import InterpreterCell
    from casemate.sessions.protocol import CommandRequest

_SUMMARY = 200  # characters


class Commands:
    def __init__(self, requester: Requester, rules: Rulebook, interpreter: InterpreterCell) -> None:
        self._requester = requester
        self._interpreter = interpreter
        self._asks = tuple(kind for kind in COMMAND_KINDS if rules.asks(kind))

    def watch(self, step: RunningStep) -> None:
        """Make the interpreter ask before it runs a command in this step."""
        if self._asks:
            step.on_command, step.asks = self._ask, self._asks

    async def check(self, code: bytes) -> ApprovalVerdict | None:
        """Ask whether a Shell step may begin. Returns a denial, or None if it is allowed or its cell ended."""
        if "shell" not in self._asks:
            return None
        decision = asyncio.wrap_future(
            self._requester.decide(_question("shell", {"command": code.decode("utf-8", "replace")}))
        )
        either: list[asyncio.Future[Any]] = [decision, self._interpreter.ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not decision.done():
            self._requester.close("its cell has ended")
            await asyncio.wait([decision])
            return None
        verdict = decision.result()
        return None if verdict.allow else verdict

    def _ask(self, request: CommandRequest) -> None:
        def answer(decision: Future[ApprovalVerdict]) -> None:
            verdict = decision.result()
            if not self._requester.is_over:  # the step still waits
                self._interpreter.answer(request.id, verdict.allow, verdict.reason)

        question = _question(request.kind, request.arguments, request.line)
        self._requester.decide(question).add_done_callback(answer)


def _question(kind: CommandKind, arguments: dict[str, str], line: int | None = None) -> Question:
    command = arguments["command"]
    short = begin(command, _SUMMARY)
    what = "run a shell command" if kind == "shell" else "start a program"
    return Question(kind, f"{what}: {short}", dict(arguments), line=line)
