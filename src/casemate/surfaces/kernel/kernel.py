"""Handles the messages of a front end: https://jupyter-client.readthedocs.io/en/stable/messaging.html."""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from casemate import __version__
from casemate.errors import CasemateError
from casemate.languages.notebooks import NOTEBOOKS
from casemate.model.events import Display, Done, ErrorEvent, Output, ResultEvent
from casemate.model.front_end import Cleared, CommMessage, LineRequest, StepTerms
from casemate.surfaces.kernel.inert_display import make_inert
from casemate.surfaces.kernel.outcome import COMMANDS, error_content, notes_on, run_command
from casemate.surfaces.kernel.questions import Questions
from casemate.surfaces.kernel.wire import VERSION
from casemate.visible import visible

if TYPE_CHECKING:
    from casemate.model.events import Event
    from casemate.model.execution import Execution, Result
    from casemate.model.front_end import FrontEvent
    from casemate.sessions.front_end import FrontEnd
    from casemate.sessions.session import Session
    from casemate.surfaces.kernel.wire import Message, Wire

_WHY_LEFT_OUT = (
    "In this page it could do all that you can. To allow that: casemate kernel install --display all. "
    "This note is shown once.\n"
)
_NEXT_INPUT = "application/vnd.casemate.next-input+json"  # what `%load` and `%recall` display
_MOST_HISTORY = 1000  # cells
_MOST_COMMS = 10_000


class Kernel:
    """One notebook's session, and its front end. ``find_version`` returns its language's version and may block.
    ``shows_all``: also show output that can act in the front end's page, such as widgets."""

    _tasks: asyncio.TaskGroup  # of `serve`

    def __init__(
        self, wire: Wire, session: Session, front_end: FrontEnd, questions: Questions,
        find_version: Callable[[], str], *, shows_all: bool,
    ) -> None:  # fmt: skip
        self._wire, self._session, self._questions, self._find_version = wire, session, questions, find_version
        self._front_end = front_end
        self._shows_all, self._has_told_left_out = shows_all, False
        self._count = 0
        self._history: list[tuple[int, str]] = []
        self._comms: dict[str, str] = {}  # targets of open comms, by id
        self._is_over = asyncio.Event()
        self._lost: tuple[str, ...] | None = None  # names that the last cell reported as lost
        self._payload: list[dict[str, Any]] = []  # of the running cell
        self._requests: Mapping[str, Callable[[Message], Awaitable[dict[str, Any]]]] = {
            "kernel_info_request": self._tell_about_itself,
            "connect_request": self._tell_ports,
            "execute_request": self._execute,
            "complete_request": self._complete,
            "inspect_request": self._inspect,
            "is_complete_request": self._check,
            "history_request": self._tell_history,
            "comm_info_request": self._tell_comms,
            "interrupt_request": self._interrupt,
            "shutdown_request": self._shut_down,
        }

    async def serve(self) -> None:
        """Serve the front end until it shuts the kernel down."""
        loops = (
            self._wire.beat(), self._take_shell(), self._take_control(), self._questions.take_answers(),
        )  # fmt: skip
        await self._publish("status", {"execution_state": "starting"}, None)
        self._end_with_front_end()
        async with asyncio.TaskGroup() as self._tasks:
            tasks = [self._tasks.create_task(loop) for loop in loops]
            await self._is_over.wait()
            for task in tasks:
                task.cancel()

    def _end_with_front_end(self) -> None:
        """Watch the process that started this one, as Jupyter names it: it may be killed before it can shut us down."""
        parent = os.environ.get("JPY_PARENT_PID", "")
        if parent.isdecimal() and int(parent) > 1:
            try:
                descriptor = os.pidfd_open(int(parent))
            except OSError:  # it has ended
                self._is_over.set()
            else:
                asyncio.get_running_loop().add_reader(descriptor, self._is_over.set)

    async def _take_shell(self) -> None:
        while True:
            message = await self._wire.receive(self._wire.shell)
            for waiting in await self._answer(message, self._wire.shell):
                await self._answer(waiting, self._wire.shell, aborts=True)

    async def _take_control(self) -> None:
        while True:
            await self._answer(await self._wire.receive(self._wire.control), self._wire.control)

    async def _answer(self, message: Message, socket: Any, *, aborts: bool = False) -> list[Message]:
        """Handle a message. After a failed cell, returns the messages queued meanwhile, whose cells are aborted."""
        await self._publish("status", {"execution_state": "busy"}, message)
        waiting: list[Message] = []
        try:
            if message.type in ("comm_open", "comm_msg", "comm_close"):
                await self._pass_to_comm(message)
            elif aborts and message.type == "execute_request":
                await self._reply(message, socket, {"status": "aborted", "execution_count": self._count})
            elif message.type in self._requests:
                content = await self._handle(message)
                is_cell = message.type == "execute_request"
                if is_cell and content["status"] == "error" and message.content.get("stop_on_error", True):
                    waiting = await self._drain_shell()
                await self._reply(message, socket, content)
        finally:
            await self._publish("status", {"execution_state": "idle"}, message)
            if message.type == "shutdown_request":
                self._is_over.set()
        return waiting

    async def _handle(self, message: Message) -> dict[str, Any]:
        try:
            return await self._requests[message.type](message)
        except CasemateError as error:
            return {"status": "error", **error_content(error)}

    async def _drain_shell(self) -> list[Message]:
        """Messages that were sent before the front end could know of the failure."""
        waiting = []
        while await self._wire.shell.poll(0):
            waiting.append(await self._wire.receive(self._wire.shell))
        return waiting

    async def _reply(self, message: Message, socket: Any, content: Mapping[str, Any]) -> None:
        kind = message.type.replace("_request", "_reply")
        await self._wire.send(socket, kind, content, message, identities=message.identities)

    async def _publish(self, kind: str, content: Mapping[str, Any], parent: Message | None, **more: Any) -> None:
        await self._wire.send(self._wire.iopub, kind, content, parent, identities=(kind.encode(),), **more)

    # -- cells

    async def _execute(self, message: Message) -> dict[str, Any]:
        code, silent = str(message.content.get("code", "")), message.content.get("silent") is True
        remembers = not silent and message.content.get("store_history", True) is True
        if remembers:
            self._count += 1
            self._history = [*self._history[1 - _MOST_HISTORY :], (self._count, code)]
        if not silent:
            await self._publish("execute_input", {"code": code, "execution_count": self._count}, message)
        can_ask = message.content.get("allow_stdin", True) is not False
        terms = StepTerms(
            "code", message.id if self._shows_all else None, remembers,
            can_ask and self._session.language == "python", has_colours=True,
        )  # fmt: skip
        self._payload = []
        try:
            with self._questions.about(message if can_ask else None):
                if COMMANDS.match(code):
                    await self._print(await run_command(self._session, code), message)
                    failure = None
                else:
                    failure = await self._run_step(code, terms, message)
        except CasemateError as error:
            failure = error_content(error)
        if failure is None:
            return {"status": "ok", "execution_count": self._count, "user_expressions": {}, "payload": self._payload}
        await self._publish("error", failure, message)
        return {"status": "error", "execution_count": self._count, **failure}

    async def _run_step(self, code: str, terms: StepTerms, parent: Message) -> dict[str, Any] | None:
        """Run a step and publish its events. Returns the error content if it failed."""
        error: ErrorEvent | None = None
        execution: Execution | None = None
        lines: list[asyncio.Task[None]] = []
        try:
            async for event in self._front_end.stream(code, terms):
                match event:
                    case ErrorEvent():
                        error = event
                    case Done(execution):
                        pass
                    case LineRequest(number, prompt, hidden):
                        lines.append(self._tasks.create_task(self._ask_line(number, prompt, hidden)))
                    case _:
                        async with self._questions.deciding:  # a cell's output cannot appear above a question
                            await self._publish_event(event, parent)
        finally:
            for line in lines:
                line.cancel()
        assert execution is not None
        lost = execution.lost_names if execution.state == "lost" else None
        notes = notes_on(execution, is_loss_new=lost is not None and lost != self._lost)
        self._lost = lost
        if lost is not None:
            self._comms.clear()
        if execution.ok:
            await self._print("".join(f"casemate: {note}\n" for note in notes), parent, "stderr")
            return None
        return error_content(execution, error.error if error else None, notes)

    async def _publish_event(self, event: Event | FrontEvent, parent: Message) -> None:
        match event:
            case Output(stream, text):
                await self._print(text, parent, stream)
            case ResultEvent(result):
                await self._publish(
                    "execute_result", {**await self._bundle_of(result, parent), "execution_count": self._count}, parent
                )
            case Display(result) if _NEXT_INPUT in result:
                self._payload = _next_input(result[_NEXT_INPUT])
            case Display(result, display_id, update):
                kind = "update_display_data" if update else "display_data"
                transient = {} if display_id is None else {"display_id": display_id}
                await self._publish(kind, {**await self._bundle_of(result, parent), "transient": transient}, parent)
            case Cleared(wait):
                await self._publish("clear_output", {"wait": wait}, parent)
            case CommMessage() if self._shows_all:
                await self._publish_comm(event, parent)

    async def _bundle_of(self, result: Result, parent: Message) -> dict[str, Any]:
        if self._shows_all:
            return {"data": dict(result), "metadata": result.metadata}
        data, metadata, left_out = make_inert(result, result.metadata)
        if left_out and not self._has_told_left_out:
            self._has_told_left_out = True
            await self._print(
                f"casemate: left out: {', '.join(map(visible, left_out))}. {_WHY_LEFT_OUT}", parent, "stderr"
            )
        return {"data": data, "metadata": metadata}

    async def _publish_comm(self, said: CommMessage, parent: Message) -> None:
        content: dict[str, Any] = {"comm_id": said.comm, "data": said.data}
        if said.kind == "open" and len(self._comms) < _MOST_COMMS:
            self._comms[said.comm] = content["target_name"] = said.target
        elif said.kind == "close":
            self._comms.pop(said.comm, None)
        await self._publish(f"comm_{said.kind}", content, parent, metadata=said.metadata, buffers=said.buffers)

    async def _print(self, text: str, parent: Message, stream: str = "stdout") -> None:
        if text:
            await self._publish("stream", {"name": stream, "text": text}, parent)

    async def _ask_line(self, number: int, prompt: str, hidden: bool) -> None:
        self._front_end.answer(number, await self._questions.ask_line(prompt, hidden=hidden))

    # -- widgets

    async def _pass_to_comm(self, message: Message) -> None:
        """Pass a message to a widget. It runs code, so it is a step."""
        if "comm" not in self._front_end.tasks or not self._shows_all:
            return
        step = {
            "type": message.type,
            "content": message.content,
            "metadata": message.metadata,
            "buffers": [b64encode(buffer).decode() for buffer in message.buffers],
        }
        try:
            failure = await self._run_step(json.dumps(step), StepTerms("comm", message.id), message)
        except CasemateError as error:
            failure = error_content(error)
        if failure is not None:
            await self._publish("error", failure, message)

    async def _tell_comms(self, message: Message) -> dict[str, Any]:
        wanted = message.content.get("target_name")
        comms = {name: {"target_name": one} for name, one in self._comms.items() if wanted in (None, "", one)}
        return {"status": "ok", "comms": comms}

    # -- what editors ask

    async def _complete(self, message: Message) -> dict[str, Any]:
        code, cursor = _place(message)
        found = await self._front_end.complete(code, cursor)
        types = [{"start": found.start, "end": found.end, "text": text, "type": kind} for text, kind in found.matches]
        return {
            "status": "ok",
            "matches": [text for text, _ in found.matches],
            "cursor_start": found.start,
            "cursor_end": found.end,
            "metadata": {"_jupyter_types_experimental": types},
        }

    async def _inspect(self, message: Message) -> dict[str, Any]:
        code, cursor = _place(message)
        found = await self._front_end.look_up(code, cursor, 1 if message.content.get("detail_level") else 0)
        data = dict(found or {})
        if not self._shows_all:  # tooltips and inspectors show it in the same page
            data, _, _ = make_inert(data, {})
        return {"status": "ok", "found": found is not None, "data": data, "metadata": {}}

    async def _check(self, message: Message) -> dict[str, Any]:
        state = await self._front_end.check(str(message.content.get("code", "")))
        return {"status": state.status, **({"indent": state.indent} if state.status == "incomplete" else {})}

    async def _tell_history(self, message: Message) -> dict[str, Any]:
        asked = message.content
        found = self._history
        if asked.get("hist_access_type") == "range":
            start, stop = int(asked.get("start") or 0), asked.get("stop")
            found = [one for one in found if one[0] >= start and (stop is None or one[0] < int(stop))]
        if asked.get("hist_access_type") == "search":
            found = [one for one in found if fnmatchcase(one[1], str(asked.get("pattern", "*")))]
        if asked.get("unique"):
            found = [(number, code) for code, number in {code: number for number, code in found}.items()]
        if asked.get("n") and asked.get("hist_access_type") != "range":
            found = found[-int(asked["n"]) :]
        rows = [[0, number, [code, None] if asked.get("output") else code] for number, code in found]
        return {"status": "ok", "history": rows}

    # -- the kernel itself

    async def _tell_about_itself(self, _message: Message) -> dict[str, Any]:
        version = await asyncio.to_thread(self._find_version)
        return {
            "status": "ok",
            "protocol_version": VERSION,
            "implementation": "casemate",
            "implementation_version": __version__,
            "language_info": {**NOTEBOOKS[self._session.language].info, "version": version},
            "banner": f"casemate {__version__}: {self._session.language} in a sandbox",
            "debugger": False,
            "help_links": [],
        }

    async def _tell_ports(self, _message: Message) -> dict[str, Any]:
        return {"status": "ok", **self._wire.ports}

    async def _interrupt(self, _message: Message) -> dict[str, Any]:
        self._session.interrupt()
        return {"status": "ok"}

    async def _shut_down(self, message: Message) -> dict[str, Any]:
        self._session.interrupt()
        content = {"status": "ok", "restart": message.content.get("restart") is True}
        await self._publish("shutdown_reply", content, message)
        return content


def _next_input(said: Any) -> list[dict[str, Any]]:
    """The payload that puts text into a cell, unless it is a command that only a person may enter."""

    text = said.get("text") if isinstance(said, dict) else None
    if not isinstance(text, str) or COMMANDS.match(text):
        return []
    return [{"source": "set_next_input", "text": text, "replace": said.get("replace") is True}]


def _place(message: Message) -> tuple[str, int]:
    code = str(message.content.get("code", ""))
    cursor = message.content.get("cursor_pos")
    return code, min(max(cursor, 0), len(code)) if isinstance(cursor, int) else len(code)
