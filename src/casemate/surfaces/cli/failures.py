"""The exit code and the line on stderr for every error, status and cause."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, InvalidArgument, NotFound

if TYPE_CHECKING:
    from casemate.model.execution import Execution


USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM
READER_GONE = 141  # 128 + SIGPIPE
CANNOT_WRITE = 74
DENIED = 77
TIMED_OUT = 124

_OF_KIND = {
    "invalid": USAGE, "not_found": USAGE, "unavailable": 69, "busy": 69, "fault": 70, "record": 74,
    "closed": 75, "denied": DENIED, "not_proved": 1,
}  # fmt: skip
_OF_STATUS = {
    "timeout": TIMED_OUT, "out_of_memory": 137, "killed": 137, "cancelled": INTERRUPTED, "denied": DENIED,
}  # fmt: skip
_OF_CAUSE = {"cpu_limit": 152, "output_limit": 153}  # 128 + SIGXCPU, 128 + SIGXFSZ

MEANINGS = (
    (USAGE, "an option, a value or the program's file is wrong; nothing ran"),
    (69, "unavailable: no wall, no interpreter, something this version cannot do, or no capacity; nothing ran"),
    (70, "casemate itself failed; please report it"),
    (74, "the record, or the program's output, could not be written"),
    (75, "casemate was ended from outside while the program ran"),
    (DENIED, "denied, by a rule or a person; nothing ran"),
    (TIMED_OUT, "the program ran into --timeout"),
    (130, "interrupted (Ctrl-C)"),
    (137, "the program needed more than --memory, or was killed from outside"),
    (141, "the reader of casemate's output is gone"),
    (143, "terminated (SIGTERM)"),
    (152, "the program used up --cpu-time"),
    (153, "the program wrote more than --full-output"),
)

EVERYTHING_THERE = "all requested packages are already installed"

LIMIT_OF_CAUSE = {
    "timeout": "wall",
    "memory_limit": "memory",
    "cpu_limit": "cpu_time",
    "process_limit": "processes",
    "output_limit": "full_output",
    "disk_limit": "disk",
    "inode_limit": "inodes",
    "open_files_limit": "open_files",
}

# The option for an argument, where the names differ by more than a hyphen.
_OPTION_OF_ARGUMENT = {
    "code": "SCRIPT",
    "arguments": "ARGS",
    "files": "--file",
    "output_dir": "--output",
    "allow_read": "--read",
    "allowed_domains": "--allow",
    "limits.output": "--output-limit",
    "limits.wall": "--timeout",
    "secrets": "--secret",
    "command": "COMMAND",
    "name": "NAME",
    "value": "VALUE",
    "server": "SERVER",
    "tool": "SERVER.TOOL",
    "tools": "the file of servers",
    "folder": "FOLDER",
    "headers": "--header",
    "args": "ARGS",
    "config": "the configuration",
    "client": "CLIENT",
    "session": "SESSION",
    "run": "RUN",
    "request_id": "REQUEST",
    "filters": "--filter",
    "archive": "SOURCE",
    "source": "SOURCE",
    "target": "TARGET",
    "sha256": "SHA256",
    "path": "PATH",
    "paths": "PATHS",
    "query": "WORDS",
    "token": "CASEMATE_TOKEN",
}

# Commands that list what exists, for errors about an unknown name.
WHAT_THERE_IS = "`casemate sessions` lists the sessions, `casemate ps --all` the runs."
_LISTED = {"SESSION": f"{WHAT_THERE_IS} `casemate sessions open NAME` opens a session.", "RUN": WHAT_THERE_IS}


def exit_code_of(execution: Execution) -> int:
    """The program's own exit code if it ended by itself, else the one for casemate's reason."""
    if execution.exit_code is not None:
        return execution.exit_code
    if execution.cause is not None and execution.cause.code in _OF_CAUSE:
        return _OF_CAUSE[execution.cause.code]
    return _OF_STATUS.get(execution.status, 70)


def exit_code_of_error(error: CasemateError) -> int:
    """The exit code for an error that casemate reports."""
    return _OF_KIND.get(error.kind, 70)


def remedy_of(error: CasemateError) -> str:
    """What to do about an error: its own remediation, or the command that lists what exists."""
    if error.remediation or not isinstance(error, NotFound):
        return error.remediation
    return _LISTED.get(option_of(error.argument), "")


def option_of(argument: str) -> str:
    """The command line's name of an argument. A name in capitals, such as a variable's, stays."""
    if argument.isupper():
        return argument
    name = argument.removeprefix("limits.").replace("_", "-")
    return _OPTION_OF_ARGUMENT.get(argument, f"--{name}")


def say(message: str) -> None:
    """Print a line from casemate itself on stderr. Failures are ignored."""
    try:
        sys.stderr.write(f"casemate: {message}\n")
        sys.stderr.flush()
    except (OSError, AttributeError):
        return


def report(error: CasemateError) -> int:
    """Print an error and its remedy. Returns the exit code."""
    from casemate.surfaces.cli.inert import inert

    message = error.message
    if isinstance(error, InvalidArgument):
        message = f"{option_of(error.argument)}: {error.problem}"
    say(inert("\n".join(line for line in (message, remedy_of(error)) if line)))
    return exit_code_of_error(error)
