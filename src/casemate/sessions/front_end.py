"""A session as a front end such as a notebook uses it: steps with widgets and ``input()``, and questions about code.

A question runs in the interpreter as a step without a record row. Answering it runs methods of the session's objects,
so the limits of a step apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, get_args

from casemate.execution.frames import parse_bundle
from casemate.languages.catalogue import runtime_for
from casemate.model.execution import Result
from casemate.model.front_end import CodeState, CodeStatus, Completion, StepTerms

if TYPE_CHECKING:
    from casemate.model.events import Event
    from casemate.model.front_end import FrontEvent, Task
    from casemate.model.overview import Validation
    from casemate.sessions.session import Session

_ANSWERS_WITHIN = 3.0  # seconds until a question is interrupted
# How V8 and bash report incomplete code.
_LACKS_END = re.compile(r"end of (?:input|file)|unexpected EOF|end-of-file|Unterminated template")
_MOST_MATCHES, _MOST_TEXT = 500, 1000  # characters of each


class FrontEnd:
    def __init__(self, session: Session, validate: Callable[..., Awaitable[Validation]]) -> None:
        """``validate``: see :meth:`casemate.Sandbox.validate`."""
        self._steps, self._language, self._validate = session.steps, session.language, validate
        self.tasks = runtime_for(session.language).session.tasks

    async def begin(self) -> None:
        """Start the interpreter, without waiting until it is ready. Raises ``CasemateError``."""
        await self._steps.cells.get_current()

    def stream(self, code: str, terms: StepTerms) -> AsyncGenerator[Event | FrontEvent]:
        """Run a step like :meth:`casemate.Session.stream`, but without a timeout. Asks only the sandbox's approver."""
        return self._steps.stream(self._steps.make_request("stream", code, {"timeout": None}), wait=True, terms=terms)

    def answer(self, number: int, line: str | None) -> None:
        """Send the running step the line for its request ``number``; None means that no line comes."""
        interpreter = self._steps.cells.current
        if interpreter is not None and interpreter.is_alive:
            interpreter.answer(number, line is not None, line or "")

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return completions at the cursor, which counts characters; empty if the language has no such task."""
        found = await self._ask("complete", code=code, cursor=cursor)
        start, end, matches = found.get("start"), found.get("end"), found.get("matches")
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(matches, list):
            return Completion(cursor, cursor)
        pairs = (one for one in matches[:_MOST_MATCHES] if isinstance(one, list) and len(one) == 2)
        texts = (tuple(text[:_MOST_TEXT] for text in pair if isinstance(text, str)) for pair in pairs)
        kept = tuple(pair for pair in texts if len(pair) == 2)
        return Completion(min(max(start, 0), cursor), min(max(end, 0), len(code)), kept)

    async def look_up(self, code: str, cursor: int, detail: int = 0) -> Result | None:
        """Describe the name at the cursor, with its documentation. ``detail`` 1 adds its source."""
        return parse_bundle(await self._ask("look_up", code=code, cursor=cursor, detail=detail))

    async def check(self, code: str) -> CodeState:
        """Return whether code is complete. Asks the interpreter, or the parser of `validate` if it has no such task."""
        if "check" not in self.tasks:
            return _state_of(code, await self._validate(code, self._language, session=True))
        found = await self._ask("check", code=code)
        indent = found.get("indent")
        known: dict[Any, CodeStatus] = {one: one for one in get_args(CodeStatus)}
        status = known.get(found.get("status"), "unknown")
        return CodeState(status, indent[:_MOST_TEXT] if isinstance(indent, str) else "")

    async def _ask(self, task: Task, **question: Any) -> dict[str, Any]:
        """Return the interpreter's last answer, even if it was interrupted later; empty if there is none."""
        if task not in self.tasks:
            return {}
        capture = await self._steps.run_off_record(json.dumps(question), StepTerms(task), _ANSWERS_WITHIN)
        answer = capture.results[-1].get("application/json") if capture.results else None
        return answer if isinstance(answer, dict) else {}


def _state_of(code: str, validation: Validation) -> CodeState:
    said = [issue.message for issue in validation.issues if issue.severity != "hint"]
    is_open = "missing ) after argument list" in said and code.count("(") > code.count(")")
    if is_open or any(_LACKS_END.search(message) for message in said):
        return CodeState("incomplete")
    return CodeState("complete" if validation.valid else "invalid")
