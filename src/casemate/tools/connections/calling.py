"""One call of a tool over an open connection: its rounds, its timeout and its elicitations."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from casemate.tools.connections.answers import (
    Answer,
    CallProgress,
    Elicit,
    Elicited,
    MalformedAnswer,
    answer_of,
    elicitation_of,
    elicited_content,
)
from casemate.tools.connections.reports import clean_text
from casemate.visible import visible

if TYPE_CHECKING:
    import anyio
    from mcp import ClientSession, types
    from pydantic import RootModel

    from casemate.redaction.redaction import Redaction

_MOST_ROUNDS = 100  # of a call whose server answers with questions or "not yet"
_MOST_ASKED = 8  # pending questions of one call
_MOST_QUESTIONS = 100  # of one call in all
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before the next round after "not yet"


@dataclass(slots=True, eq=False)
class Calling:
    tool: str
    arguments: Mapping[str, Any]
    timeout: float  # seconds, not counting waits for a person
    on_progress: Callable[[CallProgress], None] | None = None  # in the connections' thread; must not block or raise
    elicit: Elicit | None = None  # asks the user; None declines
    scope: anyio.CancelScope | None = None
    redaction: Redaction | None = field(default=None, repr=False)  # of the server's secrets
    _asked: set[Future[Elicited]] = field(default_factory=set)
    _questions: int = 0
    _waits: int = 0
    _left: float = 0.0

    def begin(self, scope: anyio.CancelScope) -> None:
        """Start the clock. ``scope`` is cancelled at the timeout."""
        self.scope = scope
        scope.deadline = time.monotonic() + self.timeout

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Pause the clock while a person is asked."""
        assert self.scope is not None
        if not self._waits:
            self._left = self.scope.deadline - time.monotonic()
            self.scope.deadline = math.inf
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                self.scope.deadline = time.monotonic() + self._left

    def end(self) -> None:
        """Cancel pending questions."""
        for asked in list(self._asked):
            asked.cancel()

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on the server's progress."""
        if self.on_progress is not None and math.isfinite(progress):
            of = total if total is not None and math.isfinite(total) else None
            self.on_progress(CallProgress(progress, of, clean_text(message or "", self.redaction)))

    async def ask(self, server: str, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Ask the user. Malformed questions, and those over the bound, are declined."""
        from mcp import types

        asked = elicitation_of(server, self.tool, params)
        if asked is not None and self.redaction is not None:
            asked = replace(asked, message=self.redaction.text(asked.message))
        self._questions += 1
        is_flood = len(self._asked) >= _MOST_ASKED or self._questions > _MOST_QUESTIONS
        if self.elicit is None or asked is None or is_flood:
            return types.ElicitResult(action="decline")
        future = self.elicit(asked)
        self._asked.add(future)
        try:
            with self.pause_clock():
                elicited = await asyncio.wrap_future(future)
        finally:
            self._asked.discard(future)
        if elicited.action != "accept":
            return types.ElicitResult(action=elicited.action)
        content = elicited_content(asked, elicited.content) if asked.schema is not None else None
        return types.ElicitResult(action="accept", content=content)


@functools.cache
def raw_result() -> type[RootModel[dict[str, Any]]]:
    """The model with which the SDK's ``send_request`` returns a raw result."""
    from pydantic import RootModel

    return RootModel[dict[str, Any]]


async def call(session: ClientSession, server: str, calling: Calling) -> Answer:
    """Call the tool, with a round for each set of questions. Raises ``MCPError``, ``MalformedAnswer``."""
    from mcp import types
    from pydantic import ValidationError

    responses: dict[str, Any] | None = None
    state: str | None = None
    pause = _FIRST_PAUSE
    hear = calling.report_progress if calling.on_progress is not None else None  # None: the server sends no progress
    for _ in range(_MOST_ROUNDS):
        params = types.CallToolRequestParams(
            name=calling.tool, arguments=dict(calling.arguments), input_responses=responses, request_state=state
        )
        try:
            # Not session.call_tool, which validates the answer against the server's schema.
            request = types.CallToolRequest(params=params)
            raw = (await session.send_request(request, raw_result(), progress_callback=hear)).root
            if raw.get("resultType") != "input_required":
                return answer_of(raw)
            wanted = types.InputRequiredResult.model_validate(raw, by_name=False)
        except ValidationError as error:
            raise MalformedAnswer(f"it is not a result of tools/call: {error.errors()[0]['msg']}") from None
        state = wanted.request_state
        if wanted.input_requests:
            responses, pause = await _answer_questions(wanted.input_requests, server, calling), _FIRST_PAUSE
        else:
            responses = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise MalformedAnswer(f"it did not give a result within {_MOST_ROUNDS} rounds")


async def _answer_questions(requests: Mapping[str, Any], server: str, calling: Calling) -> dict[str, Any]:
    """Answer the questions of one round in order."""
    from mcp import types

    responses: dict[str, Any] = {}
    for key, request in requests.items():
        if not isinstance(request, types.ElicitRequest):
            raise MalformedAnswer(f"it asks for {visible(str(request.method))}, which is not supported")
        responses[key] = await calling.ask(server, request.params)
    return responses
