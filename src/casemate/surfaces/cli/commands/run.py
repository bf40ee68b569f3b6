"""``casemate run`` as cyclopts reads it: names, types and the words of its help."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.parameters import Name
from casemate.surfaces.cli.program.options import Options

Format = Literal["text", "json"]


def run(
    script: Name,
    /,
    *args: str,
    language: str | None = None,
    timeout: float | None = None,
    memory: str | None = None,
    cpus: float | None = None,
    cpu_time: float | None = None,
    processes: int | None = None,
    disk: str | None = None,
    inodes: int | None = None,
    open_files: int | None = None,
    output_limit: str | None = None,
    full_output: str | None = None,
    file: tuple[str, ...] = (),
    env: Annotated[tuple[str, ...], Parameter(name=("--env", "-e"))] = (),
    secret: tuple[str, ...] = (),
    namespace: str | None = None,
    stdin: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    output: str | None = None,
    workspace: str | None = None,
    workspace_mode: Literal["overlay", "direct"] | None = None,
    read: tuple[str, ...] = (),
    environment: str | None = None,
    isolation: str | None = None,
    policy: str | None = None,
    allow: tuple[str, ...] = (),
    tool_server: tuple[str, ...] = (),
    explain: bool = False,
    raw: bool = False,
    format: Format = "text",  # noqa: A002 - the option's name
) -> int:
    """Run a program in a cell of its own.

    stdout, stderr and the exit code are the program's. What casemate says is on stderr and begins with "casemate:".
    Sizes are numbers of bytes, or e.g. 512MiB.

    Parameters
    ----------
    script
        The program: a file (.py, .js, .mjs, .cjs, .ts, .mts, .sh), or - for standard input.
    args
        The program's own arguments. Put -- before them when one begins with a hyphen.
    language
        python, node or shell, where the file's name does not say it. Standard input is python.
    timeout
        Seconds the program may run; 60 unless given.
    memory
        All memory of the program and its children together; 512MiB unless given.
    cpus
        Cores it may use at once; 1 unless given.
    cpu_time
        Seconds of cpu it may use; no limit of its own unless given.
    processes
        Processes and threads at once; 64 unless given.
    disk
        Bytes it may write in /workspace, /tmp and /dev/shm together; 256MiB unless given.
    inodes
        Files and folders it may make there; 20000 unless given.
    open_files
        Open files of each process; 1024 unless given.
    output_limit
        How much of stdout and of stderr --format json returns, head and tail; 1MiB unless given.
    full_output
        How much the program may write to stdout and stderr before it is ended; 64MiB unless given.
    file
        A file to put into the workspace, as PATH (under its own name) or NAME=PATH. May be repeated.
    env
        A variable for the program: NAME=VALUE, or NAME with the value that it has here. May be repeated.
    secret
        A secret that it gets as a variable, by name: one of casemate vault, or CASEMATE_SECRET_DEFAULT_<name> here.
        Its value is in nothing that comes out. May be repeated.
    namespace
        Whose secrets, and under which name the run is recorded; default unless given.
    stdin
        A file for the program's standard input, or -. Without it, what is piped or redirected into casemate.
    output
        A folder for the files the program leaves and the pictures it shows.
    workspace
        A folder of yours that the program works in. Unless given, it has an empty one of its own.
    workspace_mode
        overlay (unless given): what it changed is written back when it has ended. direct: it writes there at once.
    read
        A .env file in that folder that it may read and change as any other; they are hidden unless given. May be
        repeated.
    environment
        A virtual environment or a Python interpreter to use, by its path.
    isolation
        The wall's name; auto, unless given, is the strongest that proves itself here.
    policy
        A file with the most that is permitted; the other options only narrow it.
    allow
        A host that it may reach: example.org, *.example.org or example.org:5432; none unless given. May be repeated.
    tool_server
        An MCP server of casemate tools, by name, whose tools it may call. May be repeated. On a terminal you are asked
        about each call that the policy says nothing about; elsewhere these are denied.
    explain
        Print what would be done and with which limits, and run nothing.
    raw
        Send the program's bytes to the terminal as they are. They can do to it whatever it obeys.
    format
        text (unless given), or json: one JSON object with the whole outcome on stdout, instead of the program's output.
    """
    from casemate.surfaces.cli.program.run import run as run_it

    if script.startswith("-") and script != "-":
        raise InvalidArgument("code", f"there is no option {script}; a file of that name is ./{script}")
    limits = _given(
        memory=memory, cpus=cpus, cpu_time=cpu_time, processes=processes, disk=disk, inodes=inodes,
        open_files=open_files, output=output_limit, full_output=full_output,
    )  # fmt: skip
    options = Options(
        script=script, arguments=args, language=language, timeout=timeout, limits=limits, files=file, env=env,
        secrets=secret, namespace=namespace, stdin=stdin, output=output, workspace=workspace,
        workspace_mode=workspace_mode, read=read, environment=environment, isolation=isolation, policy=policy,
        allow=allow, tool_servers=tool_server, explain=explain, raw=raw, format=format,
    )  # fmt: skip
    return run_it(options)


def _given(**limits: str | float | None) -> dict[str, str | float]:
    """The limits that were given. A size without a unit is a number of bytes."""
    return {name: value for name, value in limits.items() if value is not None}
