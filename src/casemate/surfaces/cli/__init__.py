"""The command ``casemate``: finds the command, has it run, turns whatever happens into words and an exit code.

Starting fast matters here. Help and the plain form ``casemate run SCRIPT [-- ARGS]`` need no parser, which would take
longer to load than a program takes to run; everything else is cyclopts'.
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

# Where each command is found when it is wanted, and its line in the help.
_HERE = "casemate.surfaces.cli"

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run programs": {
        "run": (f"{_HERE}.runs:run", "Run a program in a cell of its own."),
        "validate": (f"{_HERE}.runs:validate", "Say what is wrong with a program, without running it."),
        "wrap": (f"{_HERE}.wrap:wrap", "Run any command, as a tool server, behind a wall."),
    },
    "Programs and sessions that go on, in your service": {
        "exec": (f"{_HERE}.runs:execute", "Run a program as the next step of a session."),
        "ps": (f"{_HERE}.runs:ps", "List the runs that go on."),
        "logs": (f"{_HERE}.runs:logs", "Print what a run has written."),
        "attach": (f"{_HERE}.runs:attach", "Follow a run until it is over."),
        "wait": (f"{_HERE}.runs:wait", "Wait until a run is over."),
        "kill": (f"{_HERE}.runs:kill", "End runs."),
        "cp": (f"{_HERE}.cp:cp", "Copy files and folders out of sessions and runs, or into sessions."),
        "artifacts": (f"{_HERE}.operations:artifacts", "List the files that a run has left."),
        "sessions": (f"{_HERE}.operations:sessions", "Keep interpreters with their state."),
        "diff": (f"{_HERE}.review:diff", "Show what a session has changed in its folder."),
        "apply": (f"{_HERE}.review:apply", "Apply what a session has changed to the folder."),
        "discard": (f"{_HERE}.review:discard", "Give up what a session has changed."),
        "expose": (f"{_HERE}.previews:expose", "Show a server in a session by a link."),
        "unexpose": (f"{_HERE}.previews:unexpose", "Show it no more."),
        "inspect": (f"{_HERE}.operations:inspect_session", "Show what is known of a session."),
        "bridge": (f"{_HERE}.operations:bridge", "Bind a name in a session to a value."),
        "queue": (f"{_HERE}.operations:queue", "Show how many programs run and wait."),
        "stats": (f"{_HERE}.operations:stats", "Show what the service has going on."),
        "limits": (f"{_HERE}.operations:limits", "Show and narrow the limits of what you run there."),
    },
    "What may cross the wall, and what did": {
        "approvals": (f"{_HERE}.approvals:app", "See what programs wait for, and answer it."),
        "console": (f"{_HERE}.console:console", "See and answer all of it in a browser."),
        "policy": (f"{_HERE}.configuration:policy", "Show what a policy permits, and from which line."),
        "tools": (f"{_HERE}.tools:app", "Keep MCP servers for programs, and call their tools."),
        "vault": (f"{_HERE}.vault:app", "Keep secrets for programs."),
        "packages": (f"{_HERE}.packages:app", "Install Python packages ahead, in a cell."),
        "egress": (f"{_HERE}.operations:egress", "Ask whether a host may be reached."),
        "host": (f"{_HERE}.host:app", "Use commands and files of the host that the policy opens."),
        "web": (f"{_HERE}.web:app", "Search the web, and read pages."),
        "audit": (f"{_HERE}.operations:audit", "Read the record of what happened."),
        "evidence": (f"{_HERE}.evidence:evidence", "Write what proves what ran, signed, to a file."),
        "keys": (f"{_HERE}.evidence:keys", "Show, hand out and change the key that signs."),
        "verify": (f"{_HERE}.evidence:verify", "Say whether a file or evidence is what was signed."),
    },
    "Agents, and what keeps their sessions": {
        "serve": (f"{_HERE}.service:serve_mcp", "Serve agents over MCP: tools that run code in cells."),
        "install": (f"{_HERE}.install:install", "Make casemate known to an MCP client."),
        "service": (f"{_HERE}.service:app", "Keep sessions, runs and approvals alive."),
        "kernel": (f"{_HERE}.kernel:app", "Have notebooks of Jupyter run in sessions."),
    },
    "This machine": {
        "doctor": (f"{_HERE}.doctor:doctor", "Say what this machine can do, and what would help."),
        "runtimes": (f"{_HERE}.operations:runtimes", "List the languages that there are."),
        "config": (f"{_HERE}.configuration:config", "Show what is configured, and where it came from."),
        "completion": (f"{_HERE}.install:completion", "Print completions for bash, zsh or fish."),
    },
}  # fmt: skip
COMMANDS = {name: one for section in SECTIONS.values() for name, one in section.items()}
ALIASES = {"session": "sessions", "approval": "approvals"}
_SUMMARY = "Run code that nobody has read, in real isolation, without root."
_HELP = ("-h", "--help")


def main() -> NoReturn:
    """Run the command line and end the process."""
    gc.disable()  # loading makes no garbage, and looking for it takes time
    _open_missing_streams()
    code = 70
    try:
        code = command(sys.argv[1:])
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        os._exit(code)  # taking the interpreter apart would take longer than starting it


def command(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments``; the exit code."""
    words = list(arguments)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except CasemateError as error:
        from casemate.surfaces.cli.failures import report

        code = report(error)
    except KeyboardInterrupt:
        code = failures.INTERRUPTED
    except SystemExit as left:  # so rich, which prints the help, leaves where nobody reads it
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

        start_early()  # the supervisor starts while this process loads what it needs itself
    if words[0] == "serve":
        from casemate.surfaces.cli.serve import plain, serve

        if (options := plain(words[1:])) is not None:
            return serve(options)
    if _is_plain_run(words):
        from casemate.surfaces.cli.run import RunRequest, run

        return run(RunRequest(words[1], arguments=tuple(words[3:])))
    return _run_parsed(words)


def _is_plain_run(words: list[str]) -> bool:
    """``run SCRIPT`` or ``run SCRIPT -- ARGS``: no option of casemate's is given."""
    if len(words) < 2 or words[0] != "run" or (words[1].startswith("-") and words[1] != "-"):
        return False
    return len(words) == 2 or words[2] == "--"


def application() -> App:
    """All commands as cyclopts' application; each is loaded when it is wanted."""
    from cyclopts import App, Parameter

    app = App(
        name="casemate",
        help=_SUMMARY,
        version=f"casemate {__version__}",
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # it is told as any other end
    )
    for name, (place, _summary) in COMMANDS.items():
        app.command(place, name=name)
    return app


def _run_parsed(words: list[str]) -> int:
    from cyclopts import CycloptsError, UnusedCliTokensError

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
        say(inert(f"{problem}{hint}\nTry: casemate {known} --help".replace("  ", " ")))
        return failures.USAGE
    return code if isinstance(code, int) else 0


def _too_much(app: App, chain: Sequence[str], left: Sequence[str]) -> str:
    """What is wrong with ``left``, which the command of ``chain`` does not take."""
    for name in chain:
        app = app[name]
    within = [name for name in app if not name.startswith("-")]
    if not within:
        return f"more arguments than it takes: {' '.join(left)}"
    from difflib import get_close_matches

    near = get_close_matches(left[0], within, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{' '.join(chain)} has no command {left[0]!r}{meant}\nThere are: {', '.join(within)}."


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
    """Where a standard stream was closed, put /dev/null, before a descriptor of casemate's own takes its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - kept to the end of the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _silence_stdout() -> None:
    """Have the interpreter's last flush go nowhere, instead of failing once more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
