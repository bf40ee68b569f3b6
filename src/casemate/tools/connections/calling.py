"""One call of a tool, over a connection that is there: its rounds, its clock, and what the user is asked meanwhile."""

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

_MOST_ROUNDS = 100  # of a call that its server answers with questions, or with "not yet"
_MOST_ASKED = 8  # questions to the user at once, for one call
_MOST_QUESTIONS = 100  # of one call in all: nobody answers more
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before a server that only says "not yet" is asked again


@dataclass(slots=True, eq=False)
class Calling:
    """What is called. ``timeout``: seconds, without those in which a person is waited for; ``on_progress`` is called in
    the thread of the connections and must neither block nor raise; ``elicit``: asks the user; None declines;
    ``redaction``: of the secrets that the server was given."""

    tool: str
    arguments: Mapping[str, Any]
    timeout: float
    on_progress: Callable[[CallProgress], None] | None = None
    elicit: Elicit | None = None
    scope: anyio.CancelScope | None = None
    redaction: Redaction | None = field(default=None, repr=False)
    _asked: set[Future[Elicited]] = field(default_factory=set)
    _questions: int = 0
    _waits: int = 0
    _left: float = 0.0

    def begin(self, scope: anyio.CancelScope) -> None:
        """Its clock starts; ``scope`` is cancelled when the time is over."""
        self.scope = scope
        scope.deadline = time.monotonic() + self.timeout

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """A person is waited for, so its clock is paused."""
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
        """Nobody need answer its questions any more."""
        for asked in list(self._asked):
            asked.cancel()

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The server says how far it is."""
        if self.on_progress is not None and math.isfinite(progress):
            of = total if total is not None and math.isfinite(total) else None
            self.on_progress(CallProgress(progress, of, clean_text(message or "", self.redaction)))

    async def ask(self, server: str, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Ask the user what the server wants to know. Whatever goes wrong cancels the question, not the call."""
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
    """The model by which the SDK's ``send_request`` gives a result as it came."""
    from pydantic import RootModel

    return RootModel[dict[str, Any]]


async def call(session: ClientSession, server: str, calling: Calling) -> Answer:
    """Call the tool, in as many rounds as the server asks questions. Raises ``MCPError``, ``MalformedAnswer``."""
    from mcp import types
    from pydantic import ValidationError

    responses: dict[str, Any] | None = None
    state: str | None = None
    pause = _FIRST_PAUSE
    hear = calling.report_progress if calling.on_progress is not None else None  # a server need not tell nobody
    for _ in range(_MOST_ROUNDS):
        params = types.CallToolRequestParams(
            name=calling.tool, arguments=dict(calling.arguments), input_responses=responses, request_state=state
        )
        try:
            # Not session.call_tool, which reads the answer with a schema of the server's own.
            request = types.CallToolRequest(params=params)
            raw = (await session.send_request(request, raw_result(), progress_callback=hear)).root
            if raw.get("resultType") != "input_required":
                return answer_of(raw)
            wanted = types.InputRequiredResult.model_validate(raw, by_name=False)
        except ValidationError as error:
            raise MalformedAnswer(f"it is no result of tools/call: {error.errors()[0]['msg']}") from None
        state = wanted.request_state
        if wanted.input_requests:
            responses, pause = await _answer_questions(wanted.input_requests, server, calling), _FIRST_PAUSE
        else:
            responses = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise MalformedAnswer(f"it asks for more and more: {_MOST_ROUNDS} rounds")


async def _answer_questions(requests: Mapping[str, Any], server: str, calling: Calling) -> dict[str, Any]:
    """Answers to the questions of one round, one after the other."""
    from mcp import types

    responses: dict[str, Any] = {}
    for key, request in requests.items():
        if not isinstance(request, types.ElicitRequest):
            raise MalformedAnswer(f"it asks for {visible(str(request.method))}, which is not offered")
        responses[key] = await calling.ask(server, request.params)
    return responses
