"""Questions to the person at the notebook: lines for ``input()``, and approval requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from casemate.model.approval import Decision

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest
    from casemate.surfaces.kernel.wire import Message, Wire

_ANSWERS = {"y": "once", "yes": "once", "s": "session"}
_NOBODY = (
    "no person can be asked at this kernel now; allow access beforehand with "
    "casemate kernel install --set allowed_domains=..., or with rules in a policy"
)


class Questions:
    """Asks one question at a time. ``wire`` must be set before the first."""

    wire: Wire

    def __init__(self) -> None:
        self._parent: Message | None = None  # the running cell, if its front end can be asked
        self._asking = asyncio.Lock()
        self.deciding = asyncio.Lock()  # held during an approval request; other output waits
        self._id = ""
        self._answer: asyncio.Future[str] | None = None

    @contextlib.contextmanager
    def about(self, parent: Message | None) -> Iterator[None]:
        """Within this context, ask the front end that sent ``parent``."""
        self._parent = parent
        try:
            yield
        finally:
            self._parent = None

    async def take_answers(self) -> None:
        """Take typed answers. Ignores answers to earlier questions."""
        while True:
            message = await self.wire.receive(self.wire.stdin)
            asked = message.parent.get("msg_id")
            if self._answer is not None and not self._answer.done() and asked in (None, self._id):
                self._answer.set_result(str(message.content.get("value", "")))

    async def ask_line(self, prompt: str, *, hidden: bool = False) -> str | None:
        """The typed line; None if no person can be asked."""
        async with self._asking:
            parent = self._parent
            if parent is None:
                return None
            self._answer = asyncio.get_running_loop().create_future()
            content = {"prompt": prompt, "password": hidden}
            self._id = await self.wire.send(
                self.wire.stdin, "input_request", content, parent, identities=parent.identities
            )
            try:
                return await self._answer
            finally:
                self._answer = None

    async def decide(self, request: ApprovalRequest) -> Decision:
        from casemate.surfaces.cli.terminal import request_lines

        if self._parent is None or request.kind == "elicitation":
            return Decision(reason=_NOBODY)
        async with self.deciding:
            typed = await self.ask_line(f"{request_lines(request)}casemate: Allow this? [y/N, s: for the session] ")
        scope = _ANSWERS.get((typed or "").strip().lower())
        return Decision(allow=scope is not None, scope="session" if scope == "session" else "once")
