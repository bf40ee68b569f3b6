"""Parameters of commands: those that many have, and those that are options of the API."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from cyclopts import Parameter

from casemate.api.options import RunOptions, SandboxOptions, SessionOptions
from casemate.model.limits import LimitOptions
from casemate.model.options import defaults_of, docs_of

Name = Annotated[str, Parameter(allow_leading_hyphen=True)]
RunHandle = Annotated[Name, Parameter(help="Its handle.")]
Raw = Annotated[bool, Parameter(help="Send its bytes to the terminal as they are.")]
Output = Annotated[
    Literal["text", "json"],
    Parameter(name="--format", help="text (unless given), or json: the whole answer on stdout, for programs."),
]
AsJson = Annotated[bool, Parameter(name="--json", show=False)]  # what --format json was called before

F = TypeVar("F", bound=Callable[..., Any])
_DEFINITIONS = (LimitOptions, RunOptions, SessionOptions, SandboxOptions)
LIMITS = ("memory", "cpus", "cpu_time", "processes", "disk", "inodes", "open_files")
OUTPUT_LIMITS = ("output", "full_output")


class _Form(NamedTuple):
    """An option whose name, values or meaning differ on a command line: ``help`` in place of its docstring."""

    names: tuple[str, ...] = ()
    help: str = ""
    many: bool = False


_FORMS = {
    "memory": _Form(("--memory", "--ram")),
    "cpus": _Form(("--cpus", "--cpu")),
    "wall": _Form(("--timeout",)),
    "output": _Form(("--output-limit",), "How much of stdout and of stderr an outcome has, head and tail."),
    "files": _Form(("--file",), "A file to put into the workspace, as PATH (under its own name) or NAME=PATH.", True),
    "env": _Form(("--env", "-e"), "A variable for it, as NAME=VALUE, or NAME with the value that it has here.", True),
    "secrets": _Form(
        ("--secret",),
        "A secret that it gets as a variable, by name: one of casemate vault, or CASEMATE_SECRET_DEFAULT_NAME here. "
        "Its value is in nothing that comes out.",
        True,
    ),
    "namespace": _Form((), "Whose secrets, and under which name it is recorded."),
    "stdin": _Form((), "A file for its standard input, or -. Without it, what is piped or redirected into casemate."),
    "output_dir": _Form(("--output",), "A folder for the files the program leaves and the pictures it shows."),
    "workspace": _Form((), "A folder of yours that it works in. Unless given, it has an empty one of its own."),
    "workspace_mode": _Form(
        (),
        "overlay (unless given): what it changed is written back when it has ended. direct: it writes at once. "
        "review: what it changed is shown, and written once you allow it.",
    ),
    "allow_read": _Form(
        ("--read",), "A .env file in that folder that it may read and change; they are hidden unless given.", True
    ),
    "environment": _Form((), "A virtual environment or a Python interpreter to use, by its path."),
    "isolation": _Form((), "The wall's name, or auto for the strongest that proves itself here."),
    "image": _Form((), "The image of a container that is its cell, with --isolation docker."),
    "policy": _Form((), "A file with the most that is permitted; the other options only narrow it."),
    "allowed_domains": _Form(
        ("--allow",),
        "A host that it may reach: example.org, *.example.org or example.org:5432; none unless given.",
        True,
    ),
    "allow_local": _Form(
        ("--allow-local",), "A port of this machine's own loopback that it may reach, as host.casemate.internal.", True
    ),
    "host_names": _Form(("--host-name",)),
    "allow_origins": _Form(("--allow-origin",)),
    "tools": _Form(
        ("--tool-server",),
        "An MCP server of casemate tools, by name, whose tools it may call. On a terminal you are asked about each "
        "call that the policy says nothing about; elsewhere these are denied.",
        True,
    ),
}


def takes(*options: str, of: type | None = None, defaults: bool = True, **forms: str) -> Callable[[F], F]:
    """Give a command with ``**options`` the ``options`` of the API as parameters; what is not given is None, or ().

    ``defaults``: the help says what holds unless it is given. ``forms``: other help for some of them; ``of``: what
    defines them, where it is none of the API's calls.
    """

    def mark(command: F) -> F:
        signature = inspect.signature(command)
        kept = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own = [one for one in kept if one.kind is one.KEYWORD_ONLY]
        before = [one for one in kept if one.kind is not one.KEYWORD_ONLY]
        derived = [_parameter(name, of, forms.get(name), defaults=defaults) for name in options]
        setattr(command, "__signature__", signature.replace(parameters=[*before, *derived, *own]))  # noqa: B010
        return command

    return mark


def _parameter(name: str, definition: type | None, text: str | None, *, defaults: bool) -> inspect.Parameter:
    definition = definition or next(one for one in _DEFINITIONS if name in one.__annotations__)
    form = _FORMS.get(name, _Form())
    about = text or form.help or docs_of(definition)[name].partition(";")[0].replace("`", "").replace('"', "")
    default = defaults_of(definition)[name]
    if defaults and default and not form.many and name != "language":  # which a file's name says
        shown = f"{default:g}" if isinstance(default, float | int) else default
        about = f"{about.rstrip('.')}; {shown} unless given."
    origin = definition.__annotations__[name].__origin__
    many = form.many or get_origin(origin) is tuple
    kind = tuple[str, ...] if many else _kind_of(origin)
    how = Parameter(
        name=form.names or None, allow_leading_hyphen=name == "stdin",
        help=about.rstrip(".") + (". May be repeated." if many else "."),
    )  # fmt: skip
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=() if many else default if kind is bool else None,
        annotation=Annotated[kind, how],
    )


def _kind_of(annotation: Any) -> Any:
    """What cyclopts reads for a value of such a type: a text, unless it is a number or one of some words."""
    if annotation is bool:
        return bool
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds)
    chosen = next((one for one in kinds if one is float or get_origin(one) is Literal), None)
    return (chosen or (int if int in kinds and str not in kinds else str)) | None
