"""``casemate host``: commands and files of the host, as the policy of the service opens them."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

from cyclopts import App, Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.answers import print_answer, print_document
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask, ask_patiently
from casemate.surfaces.cli.failures import DENIED, TIMED_OUT, say
from casemate.surfaces.cli.inert import Inert, inert
from casemate.surfaces.cli.operations import COMMANDS
from casemate.surfaces.cli.parameters import Name

app = App(name="host", help="Use commands and files of the host that the policy opens; most are asked about.")
access = App(name="access", help="Say what of the host is open, and ask for more.")
app.command(access)
app.command(COMMANDS["host.list"], name="list")
access.default(COMMANDS["host.access"])
access.command(COMMANDS["host.access"], name="list")
Word = Annotated[str, Parameter(allow_leading_hyphen=True)]


@app.command(name="exec")
def execute(
    *command: Word,
    timeout: float | None = None,
    secret: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    service: ServiceOptions = PLAIN,
) -> int:
    """Run a command without any shell, and print what it prints; the exit code is its own.

    casemate host exec -- git log -n 3

    Args:
        command: The program's name and its words.
        timeout: Seconds that it may take, of those that the policy gives.
        secret: The name of a secret that it gets as a variable. May be repeated.
    """
    found = ask_patiently(service, "host.exec", command=list(command), timeout=timeout, secrets=list(secret) or None)
    if service.is_json:
        print_document(found, is_json=True)
    else:
        _write(found["stdout"].encode(), sys.stdout)
        _write(found["stderr"].encode(), sys.stderr)
        if found["truncated"]:
            say("it printed more than the policy keeps (host.output)")
        if found["status"] == "timeout":
            say(f"it was ended after {found['duration']:.1f} s")
    return TIMED_OUT if found["exit_code"] is None else int(found["exit_code"])


@access.command(name="request")
def request_access(*command: Word, reason: str = "", service: ServiceOptions = PLAIN) -> int:
    """Ask for a command ahead, and wait for the answer; the exit code is 77 where it may not be run.

    casemate host access request --reason "to see what changed" -- git status

    Args:
        command: The program's name and its words, exactly as they will be run.
        reason: Shown to whoever decides.
    """
    answer = ask_patiently(service, "host.request_access", command=list(command), reason=reason)
    print_document(answer, is_json=service.is_json)
    return 0 if answer["allowed"] else DENIED


@app.command(name="read")
def read(path: Name, /, *, offset: int = 0, limit: int | None = None, service: ServiceOptions = PLAIN) -> int:
    """Print a file in a folder that the policy names.

    casemate host read /srv/data/report.csv

    Args:
        path: Its absolute path.
        offset: Byte to begin at.
        limit: Bytes at the most; 16 MiB unless given.
    """
    found = ask(service, "host.read", path=path, offset=offset, limit=limit)
    if service.is_json:
        return print_document(found, is_json=True)
    _write(base64.b64decode(found["base64"]) if found["text"] is None else found["text"].encode(), sys.stdout)
    return 0


@app.command(name="write")
def write(path: Name, source: Name, /, *, service: ServiceOptions = PLAIN) -> int:
    """Write a file in a folder that the policy opens for writing; the difference is asked about.

    casemate host write /srv/out/report.md report.md

    Args:
        path: Its absolute path.
        source: The file that has its content, or - for standard input.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InvalidArgument("source", f"cannot read {source!r}: {error.strerror}") from None
    return _tell_file(ask_patiently(service, "host.write", path=path, content=base64.b64encode(data).decode()), service)


@app.command(name="copy")
def copy(source: Name, destination: Name, /, *, service: ServiceOptions = PLAIN) -> int:
    """Copy a file between open folders, or into or out of a session.

    casemate host copy analysis:result.csv /srv/out/result.csv

    Args:
        source: An absolute path, or SESSION:path.
        destination: The same.
    """
    found = ask_patiently(service, "host.copy", source=source, destination=destination)
    return _tell_file(found or {"name": destination, "kind": "file", "size": 0, "modified": 0.0}, service)


def _tell_file(file: dict[str, Any], service: ServiceOptions) -> int:
    return print_answer(file, [inert(f"{file['name']}: written")], is_json=service.is_json)


def _write(data: bytes, stream: TextIO) -> None:
    """Write what is a stranger's: as it is, but for a terminal."""
    if stream.isatty():
        cleaner = Inert()
        data = cleaner.feed(data) + cleaner.end()
    stream.buffer.write(data)
    stream.flush()
