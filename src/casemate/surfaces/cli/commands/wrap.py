"""``casemate wrap`` as cyclopts reads it: names, types and the words of its help."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.parameters import Name
from casemate.surfaces.cli.wrapped.wrap import WrapOptions
from casemate.surfaces.cli.wrapped.wrap import wrap as wrap_it


def wrap(
    command: Name,
    /,
    *args: str,
    policy: Annotated[str | None, Parameter(name=("--policy", "--settings"))] = None,
    workspace: str | None = None,
    mode: Literal["overlay", "direct"] | None = None,
    read: tuple[str, ...] = (),
    copy: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
    env: Annotated[tuple[str, ...], Parameter(name=("--env", "-e"))] = (),
    env_prefix: str | None = None,
    secret: tuple[str, ...] = (),
    namespace: str = "default",
    timeout: float | None = None,
    memory: str | None = None,
    cpus: float | None = None,
    cpu_time: float | None = None,
    processes: int | None = None,
    disk: str | None = None,
    inodes: int | None = None,
    open_files: int | None = None,
    isolation: str = "auto",
    explain: bool = False,
    raw: bool = False,
) -> int:
    """Run any command behind a wall: casemate wrap [OPTIONS] -- COMMAND [ARGS...]

    stdin, stdout, stderr, signals and the exit code are the command's. It has no network, writes only in the folder
    that it is started in, and sees that folder at its own path, without .env files, and little else of this machine.

    casemate wrap -- node_modules/.bin/mcp-server-filesystem .

    casemate wrap --settings srt.json --copy ~/.npm -- npx -y @modelcontextprotocol/server-filesystem .

    casemate wrap --allow api.example.org --secret API_TOKEN -- my-server --stdio

    Parameters
    ----------
    command
        The command: a name on PATH, or a path.
    args
        Its arguments. Put -- before the command when one of them begins with a hyphen.
    policy
        A file with the most that is permitted, in casemate's keys or srt's; what it denies no option allows.
    workspace
        The folder that it works in; the one that casemate is started in unless given.
    mode
        direct (unless given): what it writes is in the folder at once. overlay: it is written back when it has ended.
    read
        A file or folder that it may read besides. What lies in your home folder is in its own, too. May be repeated.
    copy
        A folder like that which it may write to, as a cache: what it wrote is gone with it. May be repeated.
    allow
        A host that it may reach: example.org, *.example.org or example.org:5432; none unless given. May be repeated.
    env
        A variable for it: NAME with the value that it has here, or NAME=VALUE. May be repeated.
    env_prefix
        Every variable here whose name begins so is one for it, without that beginning.
    secret
        A secret that it gets as a variable, by name, as in casemate run. May be repeated.
    namespace
        Whose secrets, and under which name it is recorded; default unless given.
    timeout
        Seconds that it may run; no end unless given.
    memory
        All memory of it and its children together; 512MiB unless given.
    cpus
        Cores it may use at once; 1 unless given.
    cpu_time
        Seconds of cpu it may use; no limit of its own unless given.
    processes
        Processes and threads at once; 64 unless given.
    disk
        Bytes it may write in /tmp and /dev/shm, and in an overlay, together; 256MiB unless given.
    inodes
        Files and folders it may make there; 20000 unless given.
    open_files
        Open files of each process; 1024 unless given.
    isolation
        The wall's name; auto, unless given, is the strongest that proves itself here.
    explain
        Print what would be done and with which limits, and run nothing.
    raw
        Send its bytes to a terminal as they are. They can do to it whatever it obeys.
    """
    if command.startswith("-"):
        raise InvalidArgument("command", f"there is no option {command}; casemate wrap --help lists them")
    limits = {
        "memory": memory, "cpus": cpus, "cpu_time": cpu_time, "processes": processes, "disk": disk, "inodes": inodes,
        "open_files": open_files,
    }  # fmt: skip
    options = WrapOptions(
        command=command, arguments=args, policy=policy, workspace=workspace, mode=mode, read=read, copy=copy,
        allow=allow, env=env, env_prefix=env_prefix, secrets=secret, namespace=namespace, timeout=timeout,
        limits={name: value for name, value in limits.items() if value is not None}, isolation=isolation,
        explain=explain, raw=raw,
    )  # fmt: skip
    return wrap_it(options)
