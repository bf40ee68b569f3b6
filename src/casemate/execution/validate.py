"""Is this a program? Found out without running it, by the languages' own parsers, in a cell.

Text is enough to make a parser overflow, take all memory or take for ever, so that none reads a stranger's on the host.
What comes back is hostile, too: bounded, and read strictly.
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
from casemate.execution.request import MAX_CODE, make_request
from casemate.languages.catalogue import runtime_for
from casemate.languages.checker import LONGEST_REPAIRED
from casemate.languages.python.runtime import ruff_path
from casemate.model.limits import Limits, format_size
from casemate.model.overview import Fix, Issue, Severity, Validation
from casemate.model.plan import Bind
from casemate.version import how_to_install
from casemate.visible import plain

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.languages.runtime import Runtime
    from casemate.model.execution import Execution

SECONDS = 10.0  # of a cell that looks at a program
_LIMITS = Limits(memory="512MiB", wall=SECONDS, output="1MiB", full_output="1MiB", disk="64MiB")
_ROUNDS = 3  # in which slips are mended, each of which may have hidden the next
_MOST = 300  # issues, and fixes
_LONGEST = 500  # characters of a message
_RUFF = "/packages/ruff"  # where the host's is, in the cell
_WITH_IPYTHON = "# IPython\n"  # named so that it gets a cell that has it loaded
_ENDED = {
    "timeout": "took longer to read than it may",
    "out_of_memory": "takes more memory to read than it may",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at a program gave. ``fixed``: the program with ruff's ``fixes`` in it."""

    issues: tuple[Issue, ...]
    fixes: tuple[Fix, ...] = ()
    fixed: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        return not any(issue.severity == "error" for issue in self.issues)


async def validate(
    code: str | bytes, language: str, context: ExecutionContext, namespace: str, *, fix: bool, session: bool
) -> Validation:
    """See :meth:`casemate.Sandbox.validate`. Raises ``InvalidArgument``, and what keeps a cell from being made."""
    runtime = runtime_for(language)
    text, why = _text_of(code)
    if why:
        return Validation(runtime.language, False, "reject", (Issue(0, 0, why, "error", "not-a-program"),))
    look = _Look(runtime, context, namespace, session)
    first = await look.at(text, fix=fix)
    hints = await asyncio.to_thread(runtime.checker.hints_of, text)
    if first.is_valid:
        whole = replace(first, issues=(*first.issues, *hints))
        return _validation(runtime.language, whole, valid=True)
    mended, fixes = await _try_fixes(look, text, first, fix=fix)
    fixed, more = (mended.fixed, mended.fixes) if mended is not None and fix else (None, ())
    notes = first.notes
    if len(text) > LONGEST_REPAIRED:
        notes = (*notes, f"No fix was looked for: it is longer than {format_size(LONGEST_REPAIRED)}.")
    whole = Found((*first.issues, *hints), (*fixes, *more), fixed, notes)
    return _validation(runtime.language, whole, valid=False)


async def _try_fixes(look: _Look, text: str, first: Found, *, fix: bool) -> tuple[Found | None, tuple[Fix, ...]]:
    """What a text with fixes in it gave, which is ``fixed``, and the fixes; None where none helps."""
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


def _validation(language: str, found: Found, *, valid: bool) -> Validation:
    verdict = "fixed" if found.fixed is not None else "pass" if valid else "reject"
    issues = tuple(sorted(found.issues, key=lambda one: (one.severity != "error", one.line, one.column)))
    return Validation(language, valid, verdict, issues, found.fixes, found.fixed, found.notes)  # type: ignore[arg-type]


def _text_of(code: object) -> tuple[str, str]:
    """The program as text, or why no cell would take it. Raises ``InvalidArgument`` for what is no str or bytes."""
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
    """Looks at programs of one language, each in a cell that has nothing of the caller's and no network."""

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
            program, self.runtime.language, limits=_LIMITS, stdin=stdin, namespace=self.namespace,
            metadata={"validate": language, "sha256": hashlib.sha256(text.encode()).hexdigest()},
        )  # fmt: skip
        alone = replace(
            self.context, workspace=None, workspace_mode="overlay", output_dir=None, hosts=None, offers=tuple,
            layer=lambda: shown, asks=False, keeps=False, finished=lambda _: None,
        )  # fmt: skip
        execution = await pipeline.execute(request, alone)
        found = _read_lines(execution, checker.read_lines) if checker.read_lines else _read_answer(execution)
        return replace(found, notes=(*found.notes, note)) if note else found

    def _ruff(self) -> tuple[str, tuple[tuple[Any, str], ...], str]:
        """Where it is in the cell, what shows it there, and why it is not."""
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
    """A look that did not come to its end: what is not read is not let through."""
    why = _ENDED.get(execution.status, "ended the parser that read it")
    code = "too-much" if execution.status in _ENDED else "parser-ended"
    message = f"it {why} ({execution.cause.message if execution.cause else f'exit code {execution.exit_code}'})"
    return Found((Issue(0, 0, message[:_LONGEST], "error", code),))


def _read_answer(execution: Execution) -> Found:
    """What a checker has said, which is a stranger's by now."""
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
    """What a checker has said in lines, which are a stranger's by now."""
    if execution.status != "failed" and not execution.ok:
        return _look_cut_short(execution)
    said = read(execution.stderr.splitlines()[:_MOST])
    issues = tuple(replace(one, line=_place(one.line), message=_text(one.message)) for one in said)
    if not execution.ok and not any(issue.severity == "error" for issue in issues):
        return _look_cut_short(execution)
    return Found(issues)
