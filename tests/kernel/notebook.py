"""A notebook: a kernel, and a front end that keeps what comes of each cell."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from jupyter_client.manager import KernelManager
from jupyter_core.utils import ensure_event_loop

SECONDS = 100.0  # for an answer, on a machine under heavy load

Document = dict[str, Any]


@dataclass
class Outcome:
    """What came of a cell: its reply, what was published, and what was asked."""

    reply: Document = field(default_factory=dict)
    messages: list[tuple[str, Document]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[Document]:
        """The contents of all messages of a kind."""
        return [content for one, content in self.messages if one == kind]

    @property
    def text(self) -> str:
        """What was printed."""
        return "".join(content["text"] for content in self.of("stream"))

    @property
    def result(self) -> str:
        """The text of the last expression's value."""
        (only,) = self.of("execute_result")
        return str(only["data"]["text/plain"])

    @property
    def failure(self) -> str:
        """The error as people read it."""
        (only,) = self.of("error")
        return f"{only['ename']}: {only['evalue']}\n" + "\n".join(only["traceback"])


class Notebook:
    """One kernel by its name, with more variables, in a folder. It speaks through sockets in a folder: no port is
    another's."""

    def __init__(self, kernel: str, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
        self.manager = KernelManager(
            kernel_name=kernel, transport="ipc", ip=tempfile.mkdtemp(dir=os.environ["JUPYTER_RUNTIME_DIR"]) + "/k"
        )
        self.manager.start_kernel(cwd=str(folder or "."), env={**os.environ, **(variables or {})})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.context.destroy()
        ensure_event_loop().close()  # the client's, which it leaves open

    def run(
        self,
        code: str,
        *answers: str,
        allow_stdin: bool = True,
        on_start: Callable[[], object] | None = None,
        **more: Any,
    ) -> Outcome:
        """Run a cell; ``answers`` are typed in, one for each question. ``on_start`` is called when it has printed, or
        asks for more."""
        outcome, left = Outcome(), list(answers)

        def keep(message: Document) -> None:
            outcome.messages.append((message["msg_type"], message["content"]))
            if on_start is not None and message["msg_type"] == "stream":
                on_start()

        def answer(message: Document) -> None:
            outcome.asked.append(message["content"]["prompt"])
            if left:
                self.client.input(left.pop(0))
            elif on_start is not None:
                on_start()

        outcome.reply = self.client.execute_interactive(
            code, allow_stdin=allow_stdin, output_hook=keep, stdin_hook=answer, timeout=SECONDS, **more
        )["content"]
        return outcome

    def ask(self, request: Callable[..., str], *arguments: Any) -> Document:
        """What the kernel replies to a question of an editor's."""
        asked = request(*arguments)
        while True:
            reply: Document = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == asked:
                return dict(reply["content"])

    def send_to_comm(self, comm: str, data: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> Outcome:
        """Send a message to a widget, and keep what comes of it."""
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        self.client.session.send(self.client.shell_channel.socket, message, buffers=list(buffers))
        outcome = Outcome()
        while True:
            said = self.client.get_iopub_msg(timeout=SECONDS)
            if said["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            if said["content"] == {"execution_state": "idle"}:
                return outcome
            outcome.messages.append((said["msg_type"], said["content"]))
