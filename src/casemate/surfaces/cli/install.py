"""``casemate install`` and ``completion``: adds casemate to MCP clients, and completions to a shell."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.failures import say
from casemate.surfaces.clients.entries import change
from casemate.surfaces.clients.known import (
    Client,
    SettingsFile,
    check_start,
    client_named,
    entry_of,
    file_of,
    own_command,
    read_settings,
    replace,
    serve_command,
)

Toolset = Literal["default", "sandboxmcp", "ipybox", "full"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_DECLINED = 2  # the exit code
_LONGEST = 160  # characters shown of a line; a longer one may hold other settings


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
    """Add casemate to an MCP client.

    The client's settings file gets an entry that starts this installation's casemate serve; nothing else changes. The
    change is shown first, and you are asked; a backup is kept beside the file. If the client has its own command for
    this, that runs instead. A file with comments is not changed: the entry is printed.

    casemate install cursor

    casemate install vscode --scope project --toolset full

    casemate install claude-desktop --print

    Args:
        client: claude-desktop, claude-code, cursor, vscode, vscode-insiders, zed, windsurf, gemini-cli, copilot-cli,
            lm-studio or codex.
        scope: user (default): for all projects. project: for the project in the current folder.
        name: The server's name there; casemate by default.
        toolset: Its tools: default, sandboxmcp, ipybox or full; as configured by default.
        remove: Remove the entry.
        print_only: Print the content for the file, and change nothing.
        yes: Do not ask.
    """
    known = client_named(client)
    if not _NAME.match(name):
        raise InvalidArgument("name", f"{name!r} is not a valid name: use up to 64 letters, digits, _ and -")
    command = serve_command(toolset)
    entry = entry_of(known, command)
    if print_only:
        sys.stdout.write(_snippet(known, name, entry))
        return 0
    if not remove:
        check_start(command)
    wanted = None if remove else entry
    if scope == "user" and (argv := own_command(known, name, wanted)):
        if not _may(f"{known.title} manages its servers itself. This will be run:\n  {shlex.join(argv)}", yes=yes):
            return _DECLINED
        os.execv(argv[0], argv)
    path = file_of(known, scope, os.environ, os.getcwd())
    if scope == "project":
        _check_inside(path, os.getcwd())
    return _change(known, path, name, wanted, yes=yes)


def _snippet(client: Client, name: str, entry: dict[str, Any]) -> str:
    return change("", client.key, name, entry, is_toml=client.is_toml)


def _change(client: Client, path: str, name: str, entry: dict[str, Any] | None, *, yes: bool) -> int:
    found = read_settings(path)
    changed = _change_text(client, path, found, name, entry)
    if changed == found.text:
        say(f"{path} {'has that entry already' if entry else f'has no entry {name}'}; nothing to do")
        return 0
    if found.status is None and not os.path.isdir(os.path.dirname(path)):
        say(f"there is no folder {os.path.dirname(path)} yet: is {client.title} installed here?")
    if not _may("\n".join(_difference(path, found.text, changed)), yes=yes):
        return _DECLINED
    kept = replace(found, changed)
    say(f"{path} is written{'' if kept is None else f'; the backup is {kept}'}. Restart {client.title}.")
    return 0


def _check_inside(path: str, folder: str) -> None:
    """Refuse links that lead out of a project, which may be untrusted: they must not make casemate write elsewhere."""
    place = os.path.realpath(path)
    if not place.startswith(os.path.realpath(folder) + os.sep):
        raise InvalidArgument("scope", f"{path!r} is a link that leads out of the project, to {place!r}")


def _change_text(client: Client, path: str, found: SettingsFile, name: str, entry: dict[str, Any] | None) -> str:
    try:
        return change(found.text, client.key, name, entry, is_toml=client.is_toml)
    except ValueError as error:
        only = "" if client.is_toml else "Only JSON without comments is changed. "
        by_hand = f"Remove {name} from {client.key} by hand."
        if entry is not None:
            by_hand = f"Add this by hand:\n{_snippet(client, name, entry)}"
        raise InvalidArgument("client", f"{path} is unchanged: {error}", remediation=only + by_hand) from None


def _difference(path: str, before: str, after: str) -> Iterator[str]:
    """Only the lines that change: the rest of the file may be private."""
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="", n=0):
        yield line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _may(question: str, *, yes: bool) -> bool:
    """Show ``question``. True only after a yes. Raises ``InvalidArgument`` if no person can be asked."""
    from casemate.surfaces.cli.inert import inert
    from casemate.surfaces.cli.terminal import confirm, somebody_is_there

    sys.stdout.write(inert(question) + "\n")
    sys.stdout.flush()
    if yes:
        return True
    if not (somebody_is_there() and sys.stdout.isatty()):
        why = "nothing was changed, because no person can be asked here; give --yes to do it without asking"
        raise InvalidArgument("yes", why)
    if not confirm("Do it?"):
        say("nothing was changed")
        return False
    return True


Shell = Literal["bash", "zsh", "fish"]
# The zsh file of cyclopts defines a function but never calls it. Of its files, only the one for fish completes file
# names.
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
    """Print shell completions for casemate's commands and options; docs/reference/cli.md says where to put them.

    casemate completion bash > ~/.local/share/bash-completion/completions/casemate
    """
    from casemate.surfaces.cli import application

    script = application().generate_completion(prog_name="casemate", shell=shell)
    sys.stdout.write(script.replace(*_BASH) + (_ZSH if shell == "zsh" else ""))
    return 0
