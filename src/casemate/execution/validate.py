"""Checks a program without running it, by the parser of its language, in a cell.

Text alone can make a parser overflow, use all memory or never end, so no parser reads untrusted text on the host. The
parser's answer is untrusted, too: it is bounded and read strictly.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.execution import pipeline
from casemate.execution.context import Supplies
from casemate.execution.request import make_request
from casemate.languages.catalogue import runtime_for
from casemate.languages.checker import LONGEST_REPAIRED
from casemate.languages.python.runtime import ruff_path
from casemate.model.kinds import MAX_CODE
from casemate.model.limits import Limits, format_size
from casemate.model.overview import Fix, Issue, Severity, Validation, VerdictWord
from casemate.model.plan import Bind
from casemate.version import how_to_install
from casemate.visible import plain

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.languages.runtime import Runtime
    from casemate.model.execution import Execution

SECONDS = 10.0  # time limit of a cell that checks a program
_LIMITS = Limits(memory="512MiB", wall=SECONDS, output="1MiB", full_output="1MiB", disk="64MiB")
_ROUNDS = 3  # of fixes; each slip may hide the next
_MOST = 300  # issues, and fixes
_LONGEST = 500  # characters of a message
_RUFF = "/packages/ruff"  # the host's ruff in the cell
_WITH_IPYTHON = "# IPython\n"  # a program that names IPython gets a cell that has it loaded
_ENDED = {
    "timeout": "took longer to read than it may",
    "out_of_memory": "takes more memory to read than it may",
}


@dataclass(frozen=True, slots=True)
class Found:
    issues: tuple[Issue, ...]
    fixes: tuple[Fix, ...] = ()
    fixed: str | None = None  # the program with ruff's ``fixes`` applied
    notes: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        return not any(issue.severity == "error" for issue in self.issues)


async def validate(
    code: str | bytes, language: str, context: ExecutionContext, namespace: str, *, fix: bool, session: bool
) -> Validation:
    """See :meth:`casemate.Sandbox.validate`. Raises ``InvalidArgument``, and the errors of a cell's start."""
    runtime = runtime_for(language)
    text, why = _text_of(code)
    if why:
        return Validation(runtime.language, False, "reject", (Issue(0, 0, why, "error", "not-a-program"),))
    look = _Look(runtime, context, namespace, session)
    found = await look.at(text, fix=fix)
    hints = await asyncio.to_thread(runtime.checker.hints_of, text)
    if not found.is_valid:
        mended, fixes = await _try_fixes(look, text, found, fix=fix)
        fixed, more = (mended.fixed, mended.fixes) if mended is not None and fix else (None, ())
        found = replace(found, fixes=(*fixes, *more), fixed=fixed)
        if len(text) > LONGEST_REPAIRED:
            note = f"No fixes were tried: the program is longer than {format_size(LONGEST_REPAIRED)}."
            found = replace(found, notes=(*found.notes, note))
    valid = found.is_valid
    verdict: VerdictWord = "fixed" if found.fixed is not None else "pass" if valid else "reject"
    issues = sorted((*found.issues, *hints), key=lambda one: (one.severity != "error", one.line, one.column))
    return Validation(runtime.language, valid, verdict, tuple(issues), found.fixes, found.fixed, found.notes)


async def _try_fixes(look: _Look, text: str, first: Found, *, fix: bool) -> tuple[Found | None, tuple[Fix, ...]]:
    """The result for the fixed program, and the fixes. None if no fix makes it valid."""
    fixes: tuple[Fix, ...] = ()
    found = first
    for _ in range(_ROUNDS):
        text, more = await asyncio.to_thread(look.runtime.checker.repair_text, text, found.issues)
        if not more:
            return None, ()
        fixes += more
        found = await look.at(text, fix=fix)
        if found.is_valid:
            kept = found if found.fixed is not None else replace(found, fixed=text, fixes=())
            return kept, fixes
    return None, ()


def _text_of(code: object) -> tuple[str, str]:
    """The program as text, or why it is not one. Raises ``InvalidArgument`` for other types than str and bytes."""
    if not isinstance(code, str | bytes):
        raise InvalidArgument("code", f"must be str or UTF-8 bytes, not {type(code).__name__}")
    if len(code) > MAX_CODE:
        return "", f"it is longer than a program may be, {format_size(MAX_CODE)}"
    try:
        data = code.encode() if isinstance(code, str) else code
        text = data.decode("utf-8")
    except UnicodeError as error:
        return "", f"it is not valid UTF-8: {error.reason if isinstance(error, UnicodeDecodeError) else error}"[
            :_LONGEST
        ]
    if len(data) > MAX_CODE:
        return "", f"it is longer than a program may be, {format_size(MAX_CODE)}"
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return "", f"it has a NUL byte in line {line}; programs are text"
    return text, "" if text.strip() else "it is empty"


@dataclass(frozen=True, slots=True)
class _Look:
    """Checks programs of one language, each in a cell without the caller's files and without network."""

    runtime: Runtime
    context: ExecutionContext
    namespace: str
    session: bool

    async def at(self, text: str, *, fix: bool) -> Found:
        language = self.runtime.language
        ruff, shown, note = self._ruff()
        checker = self.runtime.checker
        table = [hint for hint in checker.hints if not hint.pattern]
        asked = {"session": self.session, "fix": fix, "ruff": ruff, "hints": table}
        stdin = text if checker.read_lines else f"{json.dumps(asked)}\n{text}"
        program = checker.program + (_WITH_IPYTHON if self.session and language == "python" else "")
        request = make_request(
            program, self.runtime.language, stdin=stdin, namespace=self.namespace,
            metadata={"validate": language, "sha256": hashlib.sha256(text.encode()).hexdigest()},
        )  # fmt: skip
        supplies = Supplies(layer=lambda: shown, ready=self.context.supplies.ready)
        alone = replace(self.context.for_own_program(_LIMITS), hosts=None, supplies=supplies, asks=False)
        execution = await pipeline.execute(request, alone)
        found = _read_lines(execution, checker.read_lines) if checker.read_lines else _read_answer(execution)
        return replace(found, notes=(*found.notes, note)) if note else found

    def _ruff(self) -> tuple[str, tuple[tuple[Any, str], ...], str]:
        """ruff's path in the cell, the packages that bring it there, and a note if it is missing."""
        if self.runtime.language != "python":
            return "", (), ""
        program = ruff_path()
        if program is None:
            return "", (), f"ruff is not installed, so only the syntax was looked at: {how_to_install('check')}"
        entries = self.runtime.launch(self.context.environment, self.runtime.default_name, ()).entries
        places = [entry.target for entry in entries if isinstance(entry, Bind) and entry.source == entry.target]
        if any(program.is_relative_to(place) for place in places) and not program.is_symlink():
            return str(program), (), ""
        return _RUFF, ((os.path.realpath(program), _RUFF),), ""


# --- what came of it


def _look_cut_short(execution: Execution) -> Found:
    """The result of a check that did not finish: the program is rejected."""
    why = _ENDED.get(execution.status, "ended the parser that read it")
    code = "too-much" if execution.status in _ENDED else "parser-ended"
    message = f"it {why} ({execution.cause.message if execution.cause else f'exit code {execution.exit_code}'})"
    return Found((Issue(0, 0, message[:_LONGEST], "error", code),))


def _read_answer(execution: Execution) -> Found:
    """Parse a checker's answer, which is untrusted."""
    if not execution.ok or execution.truncated:
        return _look_cut_short(execution)
    try:
        said = json.loads(execution.stdout)
        fixed = said.get("fixed")
        return Found(
            tuple(_issue(one) for one in _list_at(said, "issues")),
            tuple(
                Fix(_text(one["message"]), _place(one["line"]), _text(one["code"])) for one in _list_at(said, "fixes")
            ),
            fixed if isinstance(fixed, str) else None,
            tuple(_text(one) for one in _list_at(said, "notes")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Found((Issue(0, 0, "it ended the parser that read it (which said nothing)", "error", "parser-ended"),))


def _list_at(said: Any, name: str) -> list[Any]:
    found = said[name]
    if not isinstance(found, list):
        raise TypeError(name)
    return found[:_MOST]


def _issue(one: Any) -> Issue:
    severity: Severity = one["severity"]
    if severity not in ("error", "warning", "hint"):
        raise ValueError(severity)
    return Issue(_place(one["line"]), _place(one["column"]), _text(one["message"]), severity, _text(one["code"]))


def _place(number: Any) -> int:
    return number if type(number) is int and 0 <= number <= MAX_CODE else 0


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("no text")
    return plain(text[:_LONGEST], by=lambda _: " ")


def _read_lines(execution: Execution, read: Callable[[Iterable[str]], Iterable[Issue]]) -> Found:
    """Parse a checker's lines, which are untrusted."""
    if execution.status != "failed" and not execution.ok:
        return _look_cut_short(execution)
    said = read(execution.stderr.splitlines()[:_MOST])
    issues = tuple(replace(one, line=_place(one.line), message=_text(one.message)) for one in said)
    if not execution.ok and not any(issue.severity == "error" for issue in issues):
        return _look_cut_short(execution)
    return Found(issues)
