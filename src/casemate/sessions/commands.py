"""Shell commands of a step under approval: what its interpreter asks, and what Shell steps are asked about.

This is for people who want to see commands before they run. It keeps nothing in: code that does not want to be asked
need not ask, and what it starts is inside the wall all the same.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from casemate.model.approval import Question, Verdict

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.policy.rules import Rulebook
    from casemate.sessions.inbox import Heard
    from casemate.sessions.interpreter_cell import InterpreterCell
    from casemate.sessions.protocol import Asked

_SUMMARY = 200  # characters


class Commands:
    """The commands of one step, in the interpreter that ``life`` is."""

    def __init__(self, asker: Requester, rules: Rulebook, life: InterpreterCell) -> None:
        self._asker = asker
        self._life = life
        self.are_asked = rules.asks("shell")  # else nobody asks at all

    def listen(self, heard: Heard) -> None:
        """Answer what the interpreter asks in this step."""
        if self.are_asked:
            heard.asks, heard.must_ask = self._ask, True

    async def denied(self, code: bytes) -> Verdict | None:
        """Why a step of Shell may not begin, all of which is a command; None when it may, or when its cell has ended
        meanwhile, which is for the step to tell."""
        if not self.are_asked:
            return None
        decided = asyncio.wrap_future(self._asker.decide(_question({"command": code.decode("utf-8", "replace")})))
        either: list[asyncio.Future[Any]] = [decided, self._life.ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not decided.done():
            self._asker.close("its cell has ended")
            await asyncio.wait([decided])
            return None
        verdict = decided.result()
        return None if verdict.allow else verdict

    def _ask(self, asked: Asked) -> None:
        """In the wall's thread."""

        def answer(decided: Future[Verdict]) -> None:
            verdict = decided.result()
            if not self._asker.is_over:  # nobody waits any more
                self._life.answer(asked.id, verdict.allow, verdict.reason)

        self._asker.decide(_question(asked.arguments)).add_done_callback(answer)


def _question(arguments: dict[str, str]) -> Question:
    command = arguments["command"]
    short = command if len(command) <= _SUMMARY else f"{command[:_SUMMARY]}… ({len(command):,} characters)"
    return Question("shell", f"run a shell command: {short}", dict(arguments))
