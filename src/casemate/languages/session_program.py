"""The interpreters of sessions: the program that starts one, and requests as it reads them. Pure."""

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
    """A step to run: its ``number``, and ``cwd`` to begin in (None: where the one before ended). ``asks``: the
    kinds of commands that it has to ask about before it runs them. ``terms``: a front end's."""

    number: int
    code: bytes
    stdin: bytes | None
    cwd: str | None
    asks: tuple[CommandKind, ...] = ()
    terms: StepTerms = StepTerms()  # noqa: RUF009 - immutable

    @property
    def pipes(self) -> tuple[str, str]:
        """Where its two pipes are, in the cell."""
        return f"{STEPS}/out.{self.number}", f"{STEPS}/err.{self.number}"


class SessionProgram(Protocol):
    """``program`` is what the cell runs, ``repeat`` the seconds after which it is interrupted once more, ``tasks`` what
    it does for front ends; the others are requests as bytes."""

    program: bytes
    repeat: float
    tasks: tuple[Task, ...]

    def run(self, step: StepRequest) -> bytes:
        """Run a step."""

    def variables(self, number: int) -> bytes:
        """Tell of the user's names, as the answer to request ``number``."""

    def get(self, number: int, name: str) -> bytes:
        """Tell the value of ``name``."""

    def set(self, number: int, name: str, value: str) -> bytes:
        """Bind ``name`` to ``value``, which is JSON."""

    def answer(self, number: int, allow: bool, reason: str) -> bytes:
        """Whether what the step asked for as ``number`` may be."""


class JsonProgram:
    """Python and Node read frames: four bytes of length and JSON."""

    repeat = 1.0  # once, while there is still time: what the program does when it is interrupted shall not be

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
    """``value`` as JSON. Raises ``InvalidArgument`` for what JSON does not have, or what would not come back alike."""
    try:
        text = json.dumps(value, allow_nan=False)
        same = json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument("value", f"cannot travel as JSON: {error}") from None
    if not same:
        raise InvalidArgument(
            "value", "would be another one after its travel as JSON: keys must be str, lists no tuples"
        )
    return text


def _frame(**message: Any) -> bytes:
    body = _body(**message)
    return len(body).to_bytes(4, "big") + body


def _body(**message: Any) -> bytes:
    return json.dumps(message).encode()
