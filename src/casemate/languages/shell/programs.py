"""What else runs in cells for Shell: the interpreter of sessions, and the checker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from casemate.languages.checker import Checker, Harm
from casemate.languages.session_program import StepRequest
from casemate.model.front_end import Task
from casemate.model.overview import Fix, Issue
from casemate.model.plan import BESIDE_PROGRAM


class ShellInterpreter:
    """The protocol of bash: a line of words, followed by as many bytes as it states."""

    tasks: tuple[Task, ...] = ("code",)
    repeat = 0.15  # bash may miss an interrupt while it forks

    # This line evaluates a step's code, so that errors name the program and a line of the step.
    program = (
        f'\\builtin eval "${{__casemate_code-. ${{BASH_SOURCE%/*}}/{BESIDE_PROGRAM}/shell_session.sh}}"\n'.encode()
    )

    def run(self, step: StepRequest) -> bytes:
        out, err = step.pipes
        cwd = None if step.cwd is None else step.cwd.encode()
        sizes = " ".join("-" if data is None else str(len(data)) for data in (step.code, cwd, step.stdin))
        head = f"run {step.number} {sizes} {out} {err}\n"
        return head.encode() + step.code + (cwd or b"") + (step.stdin or b"")

    def variables(self, number: int) -> bytes:
        return f"variables {number}\n".encode()

    def get(self, number: int, name: str) -> bytes:
        return f"get {number} {name}\n".encode()

    def set(self, number: int, name: str, value: str) -> bytes:
        data = value.encode()
        return f"set {number} {name} {len(data)}\n".encode() + data

    def answer(self, number: int, allow: bool, reason: str) -> bytes:  # noqa: ARG002 - it never asks
        return b""


SESSION = ShellInterpreter()


_SAID = re.compile(r"/tmp/main\.sh: (?:line )?(\d{1,9}): (.*)")  # bash, and dash
_DOUBTS = ("warning: ",)
_HINTS = (
    Harm("rm -r /, ~, .. or *", "dangerous-remove", "this removes files outside the working folder, or all in it",
         r"\brm\s+(?:-[\w-]+\s+){1,5}(?:--\s+)?(?:[\"']?(?:/(?!workspace/)|~|\.\.|\$\{?HOME)|\*(?:[\s;&|]|$))"),
    Harm("find -delete, find -exec rm", "dangerous-remove", "this removes all files that it finds",
         r"\bfind\b[^;|]{0,300}\s-(?:delete\b|exec(?:dir)?\s+rm\b)"),
    Harm("curl ... | sh, sh <(curl ...)", "dangerous-shell", "a shell runs what comes from the network",
         r"\b(?:curl|wget)\b[^|;]{0,300}\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b|\b(?:ba|z|da)?sh\s+<\(\s*(?:curl|wget)\b"),
    Harm("sh -c, bash -c", "dangerous-shell", "a shell runs the text", r"\b(?:ba|z|da|k)?sh\s+(?:-\w+\s+)*-\w*c\b"),
    Harm("eval", "dangerous-eval", "eval runs any text it is given", r"\beval\b"),
    Harm("nc -l, socat, /dev/tcp", "dangerous-network", "this connects to the network or listens",
         r"\b(?:nc|ncat|netcat)\s[^;|]{0,200}-\w*l|\bsocat\s|/dev/(?:tcp|udp)/"),
    Harm("kill -9 -1, killall, pkill", "dangerous-kill", "this can end every process",
         r"\bkill\s+(?:-\w+\s+(?:\w+\s+)?(?:--\s+)?|--\s+)-1\b|(?:^|[;&|(]|\bsudo\s)\s*(?:killall|pkill)\b"),
    Harm("crontab, at", "dangerous-schedule", "this schedules programs",
         r"\bcrontab\s|(?:^|[;&|(])\s*at\s+(?:-\w|now\b|\d)"),
    Harm("chmod 777, chmod a+w", "dangerous-permissions", "this lets everyone write there",
         r"\bchmod\s+(?:-\w+\s+)*(?:[0-7]{2,3}[2367]|[ug]*[ao][ugoa]*[+=][rxXst]*w\w*)(?:\s|$)"),
    Harm("mkfs, fdisk, wipefs, dd of=/dev/", "dangerous-device", "this overwrites a device",
         r"\b(?:mkfs|fdisk|wipefs)\b|\bdd\b[^;|]{0,300}\bof=/dev/"),
    Harm(":(){ :|: }", "dangerous-fork", "this starts processes without end", r":\s*\(\s*\)\s*\{[^}]{0,50}:\s*\|\s*:"),
)  # fmt: skip


def repair_line_ends(text: str, issues: Sequence[Issue], *, has_moved: bool) -> tuple[str, list[Fix]]:  # noqa: ARG001
    """Use plain line feeds."""
    if "\r\n" not in text:
        return text, []
    return text.replace("\r\n", "\n"), [Fix("End lines with just a line feed", 0, "line-ends")]


def read_lines(lines: Iterable[str]) -> Iterable[Issue]:
    """Errors and warnings. The line after an error repeats its content."""
    seen: set[int] = set()
    for line in lines:
        match = _SAID.match(line)
        if match is None:
            continue
        number, message = int(match[1]), match[2]
        if message.startswith(_DOUBTS):
            yield Issue(number, 0, message.partition(": ")[2], "warning", "shell-warning")
        elif number not in seen:
            seen.add(number)
            yield Issue(number, 0, message, "error", "syntax")


CHECKER = Checker('cat > /tmp/main.sh && exec "${BASH:-sh}" -n /tmp/main.sh\n', _HINTS, repair_line_ends, read_lines)
