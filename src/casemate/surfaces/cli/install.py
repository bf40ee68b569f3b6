"""``casemate install`` and ``completion``: casemate made known to other programs, and to a shell."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import sys
import termios
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.failures import say
from casemate.surfaces.clients.editing import MalformedSettings, with_member, with_table, without_member, without_table
from casemate.surfaces.clients.known import (
    Client,
    SettingsFile,
    check_start,
    client_named,
    entry_of,
    file_of,
    read_settings,
    replace,
    serve_command,
)

Toolset = Literal["default", "sandboxmcp", "ipybox", "full"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_LONGEST = 160  # characters of a line of what is shown: a file in one line may hold what others keep there


def install(
    client: str,
    /,
    *,
    scope: Literal["user", "project"] = "user",
    name: str = "casemate",
    toolset: Toolset | None = None,
    remove: bool = False,
    print_only: Annotated[bool, Parameter(name="--print")] = False,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
) -> int:
    """Make casemate known to an MCP client.

    Its configuration file gets an entry that starts this installation's casemate serve; all else in it stays as it
    is, comments included. What would change is shown first, and you are asked; the earlier content is kept beside it.

    casemate install cursor

    casemate install vscode --scope project --toolset full

    casemate install claude-desktop --print

    Args:
        client: claude-desktop, claude-code, cursor, vscode, vscode-insiders, zed, windsurf, gemini-cli, copilot-cli,
            lm-studio or codex.
        scope: user (unless given): for all projects. project: for the one in the folder that you are in.
        name: What the server is called there; casemate unless given.
        toolset: Its tools: default, sandboxmcp, ipybox or full; as configured unless given.
        remove: Take the entry out.
        print_only: Print what the file would have to hold, and change nothing.
        yes: Do not ask.
    """
    known = client_named(client)
    if not _NAME.match(name):
        raise InvalidArgument("name", f"{name!r} is no name; take letters, digits, _ and -, at most 64")
    command = serve_command(toolset)
    entry = entry_of(known, command)
    if print_only:
        sys.stdout.write(_snippet(known, name, entry))
        return 0
    if not remove:
        check_start(command)
    program = shutil.which(known.own) if known.own and scope == "user" else None
    if program:
        _hand_over(program, known, name, None if remove else entry, yes=yes)
    path = file_of(known, scope, os.environ, os.getcwd())
    if scope == "project":
        _check_inside(path, os.getcwd())
    return _change(known, path, name, None if remove else entry, yes=yes)


def _snippet(client: Client, name: str, entry: dict[str, Any]) -> str:
    if client.is_toml:
        return with_table("", client.key, name, entry)
    return json.dumps({client.key: {name: entry}}, indent=2) + "\n"


def _hand_over(program: str, client: Client, name: str, entry: dict[str, Any] | None, *, yes: bool) -> NoReturn:
    """Have the client's own command do it: this process becomes that one."""
    if entry is None:
        argv = [program, "mcp", "remove", "--scope", "user", name]
    else:
        argv = [program, "mcp", "add-json", "--scope", "user", name, json.dumps(entry)]
    _ask(f"{client.title} keeps its servers itself. This will be run:\n  {' '.join(argv)}", yes=yes)
    sys.stdout.flush()
    os.execv(program, argv)


def _change(client: Client, path: str, name: str, entry: dict[str, Any] | None, *, yes: bool) -> int:
    found = read_settings(path)
    changed = _change_text(client, path, found, name, entry)
    if changed == found.text:
        say(f"{path} {'has that entry already' if entry else f'has no entry {name}'}; nothing to do")
        return 0
    if found.status is None and not os.path.isdir(os.path.dirname(path)):
        say(f"there is no folder {os.path.dirname(path)} yet: is {client.title} installed here?")
    _ask("\n".join(_difference(path, found.text, changed)), yes=yes)
    kept = replace(found, changed)
    say(f"{path} is written{'' if kept is None else f'; what it held is in {kept}'}. Restart {client.title}.")
    return 0


def _check_inside(path: str, folder: str) -> None:
    """A project is somebody else's: its links shall not have files of yours written."""
    place = os.path.realpath(path)
    if not place.startswith(os.path.realpath(folder) + os.sep):
        raise InvalidArgument("scope", f"{path!r} is a link that leads out of the project, to {place!r}")


def _change_text(client: Client, path: str, found: SettingsFile, name: str, entry: dict[str, Any] | None) -> str:
    try:
        if entry is None:
            return (without_table if client.is_toml else without_member)(found.text, client.key, name)
        return (with_table if client.is_toml else with_member)(found.text, client.key, name, entry)
    except MalformedSettings as error:
        raise InvalidArgument(
            "client",
            f"{path}:{error.line}:{error.column}: {error.problem}",
            remediation="Correct the file; or see what it would have to hold: casemate install "
            f"{client.name} --print. Nothing has been changed.",
        ) from None


def _difference(path: str, before: str, after: str) -> Iterator[str]:
    """The lines that change, and no others: what else is in the file is nobody's business."""
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="", n=0):
        yield line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _ask(question: str, *, yes: bool) -> None:
    """Show it, and go on only when somebody says yes. Raises ``InvalidArgument`` where nobody is there to ask."""
    from casemate.surfaces.cli.inert import inert

    sys.stdout.write(inert(question) + "\n")
    sys.stdout.flush()
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument(
            "yes",
            "nothing has been changed, for nobody is there to be asked; give --yes to have this done",
            remediation="",
        )
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before is no answer
    sys.stdout.write("Do it? [y/N] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidArgument("yes", "nothing has been changed, for the answer was not yes")


Shell = Literal["bash", "zsh", "fish"]
# What cyclopts leaves out. Its file for zsh only defines a function, and nothing calls that; and names of files are
# completed by fish alone.
_BASH = ("complete -F _casemate casemate", "complete -o bashdefault -o default -F _casemate casemate")
_ZSH = """
_casemate_or_files() {
  local insert=$compstate[insert]
  _cyclopts_casemate "$@"
  (( compstate[nmatches] )) && return
  compstate[insert]=$insert
  _files
}

if [[ $funcstack[1] == _casemate ]]; then
  _casemate_or_files "$@"
else
  compdef _casemate_or_files casemate
fi
"""


def completion(shell: Shell, /) -> int:
    """Print what makes a shell complete casemate's commands and options; docs/reference/cli.md says where it goes.

    casemate completion bash > ~/.local/share/bash-completion/completions/casemate

    Args:
        shell: bash, zsh or fish.
    """
    from casemate.surfaces.cli import application

    script = application().generate_completion(prog_name="casemate", shell=shell)
    sys.stdout.write(script.replace(*_BASH) + (_ZSH if shell == "zsh" else ""))
    return 0
