"""The interpreters of sessions: the program that starts one, and the requests that it reads."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from casemate.errors import InvalidArgument
from casemate.model.front_end import StepTerms, Task
from casemate.model.plan import STEPS

CommandKind = Literal["shell", "process"]
COMMAND_KINDS: tuple[CommandKind, ...] = get_args(CommandKind)


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step to run."""

    number: int
    code: bytes
    stdin: bytes | None
    cwd: str | None  # the folder to begin in; None for where the previous step ended
    asks: tuple[CommandKind, ...] = ()  # kinds of commands that the step must ask about before it runs them
    # Terms of a front end.
    terms: StepTerms = StepTerms()  # noqa: RUF009 - immutable

    @property
    def pipes(self) -> tuple[str, str]:
        """The paths of its two pipes in the cell."""
        return f"{STEPS}/out.{self.number}", f"{STEPS}/err.{self.number}"


class SessionProgram(Protocol):
    """An interpreter of sessions. The methods return requests as bytes."""

    program: bytes  # what the cell runs
    repeat: float  # seconds between interrupts of a step
    tasks: tuple[Task, ...]  # what it does for front ends

    def run(self, step: StepRequest) -> bytes:
        """Run a step."""

    def variables(self, number: int) -> bytes:
        """List the user's names, as the answer to request ``number``."""

    def get(self, number: int, name: str) -> bytes:
        """Return the value of ``name``."""

    def set(self, number: int, name: str, value: str) -> bytes:
        """Bind ``name`` to ``value``, which is JSON."""

    def answer(self, number: int, allow: bool, reason: str) -> bytes:
        """Answer request ``number`` of a step: whether its command may run."""


class JsonProgram:
    """The protocol of Python and Node: four bytes of length, then JSON."""

    repeat = 1.0  # a second interrupt comes late, so that it does not hit the program's own interrupt handling

    def __init__(self, program: bytes, tasks: tuple[Task, ...] = ("code",)) -> None:
        self.program = program
        self.tasks = tasks

    def run(self, step: StepRequest) -> bytes:
        out, err = step.pipes
        stdin = None if step.stdin is None else base64.b64encode(step.stdin).decode()
        code = step.code.decode()
        terms = step.terms
        asks = (*step.asks, *(("input",) if terms.answers else ()))
        return _frame(
            op="run", step=step.number, code=code, out=out, err=err, stdin=stdin, cwd=step.cwd, asks=asks,
            task=terms.task, front=terms.message, remembers=terms.remembers,
            colours=terms.has_colours,
        )  # fmt: skip

    def variables(self, number: int) -> bytes:
        return _frame(op="variables", id=number)

    def get(self, number: int, name: str) -> bytes:
        return _frame(op="get", id=number, name=name)

    def set(self, number: int, name: str, value: str) -> bytes:
        body = _body(op="set", id=number, name=name)[:-1] + f', "value": {value}}}'.encode()
        return len(body).to_bytes(4, "big") + body

    def answer(self, number: int, allow: bool, reason: str) -> bytes:
        return _frame(op="answer", id=number, allow=allow, reason=reason)


def json_of(value: Any) -> str:
    """``value`` as JSON. Raises ``InvalidArgument`` if JSON cannot represent it exactly."""
    try:
        text = json.dumps(value, allow_nan=False)
        same = json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument("value", f"cannot be converted to JSON: {error}") from None
    if not same:
        raise InvalidArgument("value", "would change in JSON: keys must be str, and tuples become lists")
    return text


def _frame(**message: Any) -> bytes:
    body = _body(**message)
    return len(body).to_bytes(4, "big") + body


def _body(**message: Any) -> bytes:
    return json.dumps(message).encode()
