"""The command ``casemate``: finds and runs the command, and turns every outcome into words and an exit code.

Starting fast matters here. Help and the plain form ``casemate run SCRIPT [-- ARGS]`` avoid the parser, cyclopts, which
takes longer to load than a program takes to run.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from casemate import __version__
from casemate.errors import CasemateError
from casemate.surfaces.cli import failures

if TYPE_CHECKING:
    from cyclopts import App

# Where each command is found, and its line in the help.
_HERE = "casemate.surfaces.cli"

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run programs": {
        "run": (f"{_HERE}.runs:run", "Run a program in a cell."),
        "validate": (f"{_HERE}.runs:validate", "Check a program without running it."),
        "wrap": (f"{_HERE}.wrap:wrap", "Run any command, as a tool server, behind a wall."),
    },
    "Programs and sessions in your service": {
        "exec": (f"{_HERE}.runs:execute", "Run a program as the next step of a session."),
        "ps": (f"{_HERE}.runs:ps", "List unfinished runs."),
        "logs": (f"{_HERE}.runs:logs", "Print what a run has written."),
        "attach": (f"{_HERE}.runs:attach", "Follow a run until it ends."),
        "wait": (f"{_HERE}.runs:wait", "Wait until a run ends."),
        "kill": (f"{_HERE}.runs:kill", "End runs."),
        "cp": (f"{_HERE}.cp:cp", "Copy files and folders out of sessions and runs, or into sessions."),
        "artifacts": (f"{_HERE}.operations:artifacts", "List the files that a run left."),
        "sessions": (f"{_HERE}.operations:sessions", "Keep interpreters with their state."),
        "diff": (f"{_HERE}.review:diff", "Show a session's changes to its folder."),
        "apply": (f"{_HERE}.review:apply", "Apply a session's changes to the folder."),
        "discard": (f"{_HERE}.review:discard", "Discard a session's changes."),
        "expose": (f"{_HERE}.operations:expose", "Show a server in a session by a link."),
        "unexpose": (f"{_HERE}.operations:unexpose", "Stop exposing a port."),
        "inspect": (f"{_HERE}.operations:inspect_session", "Show a session's state."),
        "bridge": (f"{_HERE}.operations:bridge", "Bind a name in a session to a value."),
        "queue": (f"{_HERE}.operations:queue", "Show how many programs run and wait."),
        "stats": (f"{_HERE}.operations:stats", "Show the service's activity."),
        "limits": (f"{_HERE}.operations:limits", "Show and narrow the limits of your runs there."),
    },
    "What may cross the wall, and what did": {
        "approvals": (f"{_HERE}.approvals:app", "List and answer approval requests."),
        "console": (f"{_HERE}.console:console", "Show and answer all of this in a browser."),
        "policy": (f"{_HERE}.configuration:policy", "Show what a policy permits, and from which line."),
        "tools": (f"{_HERE}.tools:app", "Keep MCP servers for programs, and call their tools."),
        "vault": (f"{_HERE}.vault:app", "Keep secrets for programs."),
        "packages": (f"{_HERE}.packages:app", "Install Python packages in advance, in a cell."),
        "egress": (f"{_HERE}.outside:egress", "Ask whether a host may be reached."),
        "host": (f"{_HERE}.outside:host", "Use commands and files of the host that the policy opens."),
        "web": (f"{_HERE}.outside:web", "Search the web, and read pages."),
        "audit": (f"{_HERE}.operations:audit", "Read the record of what happened."),
        "evidence": (f"{_HERE}.evidence:evidence", "Write signed evidence of what ran to a file."),
        "keys": (f"{_HERE}.evidence:keys", "Show, export and replace the signing key."),
        "verify": (f"{_HERE}.evidence:verify", "Verify a signed file or evidence."),
    },
    "Agents and the service": {
        "serve": (f"{_HERE}.service:serve_mcp", "Serve agents over MCP: tools that run code in cells."),
        "install": (f"{_HERE}.install:install", "Add casemate to an MCP client."),
        "service": (f"{_HERE}.service:app", "Keep sessions, runs and approvals alive."),
        "kernel": (f"{_HERE}.kernel:app", "Run Jupyter notebooks in sessions."),
    },
    "This machine": {
        "doctor": (f"{_HERE}.doctor:doctor", "Show what this machine supports, and what would help."),
        "runtimes": (f"{_HERE}.operations:runtimes", "List the languages."),
        "config": (f"{_HERE}.configuration:config", "Show the configuration, and where it came from."),
        "completion": (f"{_HERE}.install:completion", "Print completions for bash, zsh or fish."),
    },
}  # fmt: skip
COMMANDS = {name: one for section in SECTIONS.values() for name, one in section.items()}
_SEPARATED = {"run": "SCRIPT --", "wrap": "-- COMMAND", "tools add": "NAME -- COMMAND"}  # before a program's arguments
ALIASES = {"session": "sessions", "approval": "approvals"}
_SUMMARY = "Run code that nobody has read, in real isolation, without root."
_HELP = ("-h", "--help")


def main() -> NoReturn:
    """Run the command line and end the process."""
    gc.disable()  # loading makes no garbage, and collecting takes time
    _open_missing_streams()
    code = 70
    try:
        code = command(sys.argv[1:])
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        os._exit(code)  # interpreter shutdown would take longer than the start


def command(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments``. Returns the exit code."""
    words = list(arguments)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except CasemateError as error:
        from casemate.surfaces.cli.failures import report

        code = report(error)
    except KeyboardInterrupt:
        code = failures.INTERRUPTED
    except SystemExit as left:  # rich exits so if the reader of the help is gone
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        code = failures.READER_GONE
    except BrokenPipeError:
        _silence_stdout()
        code = failures.READER_GONE
    except OSError as error:
        from casemate.files.user_folders import not_ours
        from casemate.surfaces.cli.failures import say

        _silence_stdout()
        is_denied = isinstance(error, PermissionError) and isinstance(error.filename, str)
        whose = not_ours(error.filename) if is_denied else ""
        say(f"{error}; {whose}\nRun casemate as that user, or give it the folder (chown)." if whose else str(error))
        code = failures.CANNOT_WRITE
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in _HELP:
        sys.stdout.write(_help())
        return 0 if words else failures.USAGE
    if words[0] == "help":
        return _dispatch([*words[1:], "--help"])
    if words == ["--version"]:
        sys.stdout.write(f"casemate {__version__}\n")
        return 0
    words[0] = ALIASES.get(words[0], words[0])
    if words[0] in ("run", "wrap") and sys.platform == "linux" and not {*_HELP, "--explain"} & {*words}:
        from casemate.walls.registry import start_early

        start_early()  # the supervisor starts while this process loads its own modules
    if words[0] == "serve":
        from casemate.surfaces.cli.serve import plain, serve

        if (options := plain(words[1:])) is not None:
            return serve(options)
    if _is_plain_run(words):
        from casemate.surfaces.cli.run import RunRequest, run

        return run(RunRequest(words[1], arguments=tuple(words[3:])))
    return _run_parsed(words)


def _is_plain_run(words: list[str]) -> bool:
    """``run SCRIPT`` or ``run SCRIPT -- ARGS``, without casemate options."""
    if len(words) < 2 or words[0] != "run" or (words[1].startswith("-") and words[1] != "-"):
        return False
    return len(words) == 2 or words[2] == "--"


def application() -> App:
    """All commands as a cyclopts application. Each is loaded on use."""
    from cyclopts import App, Parameter

    app = App(
        name="casemate",
        help=_SUMMARY,
        version=f"casemate {__version__}",
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # handled as any other end
    )
    for name, (place, _summary) in COMMANDS.items():
        app.command(place, name=name)
    return app


def _run_parsed(words: list[str]) -> int:
    from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

    app = application()
    try:
        code = app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from casemate.model.foreign import option_hint
        from casemate.surfaces.cli.failures import say
        from casemate.surfaces.cli.inert import inert

        known = " ".join(error.command_chain or ()) if words[0] in COMMANDS else ""
        left = error.unused_tokens if isinstance(error, UnusedCliTokensError) else None
        problem = _too_much(app, error.command_chain or (), left) if left else error
        hint = "".join(f"\nOr {hint}" for hint in map(option_hint, words) if hint)
        if isinstance(error, UnknownOptionError) and known in _SEPARATED:
            hint += f"\nThe program's own options go after --: casemate {known} {_SEPARATED[known]} ARGUMENTS"
        say(inert(f"{problem}{hint}\nTry: casemate {known} --help".replace("  ", " ")))
        return failures.USAGE
    return code if isinstance(code, int) else 0


def _too_much(app: App, chain: Sequence[str], left: Sequence[str]) -> str:
    for name in chain:
        app = app[name]
    within = [name for name in app if not name.startswith("-")]
    if not within:
        return f"too many arguments: {' '.join(left)}"
    from difflib import get_close_matches

    near = get_close_matches(left[0], within, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{' '.join(chain)} has no command {left[0]!r}{meant}\nCommands: {', '.join(within)}."


def _help() -> str:
    sections = "".join(f"\n{title}:\n{_lines_of(section)}" for title, section in SECTIONS.items())
    codes = "".join(f"  {code:>3}  {meaning}\n" for code, meaning in failures.MEANINGS)
    return (
        f"Usage: casemate COMMAND ...\n\n{_SUMMARY}\n{sections}\n"
        "  casemate COMMAND --help lists a command's options; casemate --version prints the version.\n\n"
        f"Exit codes, where they are not the program's own:\n{codes}"
    )


def _lines_of(section: dict[str, tuple[str, str]]) -> str:
    return "".join(f"  {name:<10} {summary}\n" for name, (_, summary) in section.items())


def _open_missing_streams() -> None:
    """Replace closed standard streams by /dev/null, before another descriptor takes their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - kept to the end of the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _silence_stdout() -> None:
    """Send the interpreter's last flush to /dev/null, so that it does not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
