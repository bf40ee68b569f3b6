"""The commands there are: where each is found when it is wanted, and its line in the help. Loads nothing."""

from __future__ import annotations

_HERE = "casemate.surfaces.cli.commands"

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run programs": {
        "run": (f"{_HERE}.run:run", "Run a program in a cell of its own."),
        "validate": (f"{_HERE}.validate:validate", "Say what is wrong with a program, without running it."),
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
        "artifacts": (f"{_HERE}.artifacts:artifacts", "List the files that a run has left."),
        "sessions": (f"{_HERE}.sessions:app", "Keep interpreters with their state."),
        "inspect": (f"{_HERE}.sessions:inspect", "Show what is known of a session."),
        "bridge": (f"{_HERE}.sessions:bridge", "Bind a name in a session to a value."),
        "queue": (f"{_HERE}.states:queue", "Show how many programs run and wait."),
        "stats": (f"{_HERE}.states:stats", "Show what the service has going on."),
        "limits": (f"{_HERE}.states:limits", "Show and narrow the limits of what you run there."),
    },
    "What may cross the wall, and what did": {
        "approvals": (f"{_HERE}.approvals:app", "See what programs wait for, and answer it."),
        "policy": (f"{_HERE}.policy:policy", "Show what a policy permits, and from which line."),
        "tools": (f"{_HERE}.tools:app", "Keep MCP servers for programs, and call their tools."),
        "vault": (f"{_HERE}.vault:app", "Keep secrets for programs."),
        "packages": (f"{_HERE}.packages:app", "Install Python packages ahead, in a cell."),
        "egress": (f"{_HERE}.states:egress", "Ask whether a host may be reached."),
        "audit": (f"{_HERE}.audit:app", "Read the record of what happened."),
        "verify": (f"{_HERE}.artifacts:verify", "Say whether a file is what its hash was made of."),
    },
    "Agents, and what keeps their sessions": {
        "serve": (f"{_HERE}.serve:serve", "Serve agents over MCP: tools that run code in cells."),
        "install": (f"{_HERE}.install:install", "Make casemate known to an MCP client."),
        "service": (f"{_HERE}.service:app", "Keep sessions, runs and approvals alive."),
    },
    "This machine": {
        "doctor": (f"{_HERE}.doctor:doctor", "Say what this machine can do, and what would help."),
        "runtimes": (f"{_HERE}.states:runtimes", "List the languages that there are."),
        "config": (f"{_HERE}.config:app", "Show what is configured, and where it came from."),
        "completion": (f"{_HERE}.completion:completion", "Print completions for bash, zsh or fish."),
    },
}  # fmt: skip
COMMANDS = {name: one for section in SECTIONS.values() for name, one in section.items()}
ALIASES = {"session": "sessions", "approval": "approvals"}
