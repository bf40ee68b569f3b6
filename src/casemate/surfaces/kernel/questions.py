"""What the kernel asks the person in front of the notebook: lines for ``input()``, and what may cross the wall."""

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
    "nobody can be asked in front of this kernel now; what it may reach can be said beforehand: "
    "casemate kernel install --set allowed_domains=..., or rules in a policy"
)


class Questions:
    """One is asked at a time. ``wire`` must be set before the first."""

    wire: Wire

    def __init__(self) -> None:
        self._parent: Message | None = None  # the cell that runs, where its front end can be asked
        self._asking = asyncio.Lock()
        self.deciding = asyncio.Lock()  # held while an approval is asked: meanwhile nothing else is shown
        self._id = ""
        self._answer: asyncio.Future[str] | None = None

    @contextlib.contextmanager
    def about(self, parent: Message | None) -> Iterator[None]:
        """Meanwhile what is asked is asked where this message came from."""
        self._parent = parent
        try:
            yield
        finally:
            self._parent = None

    async def take_answers(self) -> None:
        """Take what is typed. An answer to an earlier question is none to this one."""
        while True:
            message = await self.wire.receive(self.wire.stdin)
            asked = message.parent.get("msg_id")
            if self._answer is not None and not self._answer.done() and asked in (None, self._id):
                self._answer.set_result(str(message.content.get("value", "")))

    async def ask_line(self, prompt: str, *, hidden: bool = False) -> str | None:
        """The line that is typed in; None where nobody can be asked."""
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
        """Ask whether something may cross, showing all of it."""
        from casemate.surfaces.cli.terminal import request_lines

        if self._parent is None or request.kind == "elicitation":
            return Decision(reason=_NOBODY)
        async with self.deciding:
            typed = await self.ask_line(f"{request_lines(request)}casemate: Allow this? [y/N, s: for the session] ")
        scope = _ANSWERS.get((typed or "").strip().lower())
        return Decision(allow=scope is not None, scope="session" if scope == "session" else "once")
