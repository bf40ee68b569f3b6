"""Parameters of commands: common ones, and options of the API."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from cyclopts import Parameter

from casemate.api.options import RunOptions, SandboxOptions, SessionOptions
from casemate.model.limits import COMMAND_LIMITS, OUTPUT_LIMITS, LimitOptions
from casemate.model.options import defaults_of, docs_of

Name = Annotated[str, Parameter(allow_leading_hyphen=True)]
RunHandle = Annotated[Name, Parameter(help="Its handle.")]
Raw = Annotated[bool, Parameter(help="Send its bytes to the terminal as they are.")]
Output = Annotated[
    Literal["text", "json"],
    Parameter(name="--format", help="text (unless given), or json: the whole answer on stdout, for programs."),
]
AsJson = Annotated[bool, Parameter(name="--json", show=False)]  # the former name of --format json

F = TypeVar("F", bound=Callable[..., Any])
_DEFINITIONS = (LimitOptions, RunOptions, SessionOptions, SandboxOptions)
PROGRAM_LIMITS = (*COMMAND_LIMITS, *OUTPUT_LIMITS)


class _Form(NamedTuple):
    names: tuple[str, ...] = ()
    help: str = ""
    many: bool = False


_FORMS = {
    "memory": _Form(("--memory", "--ram")),
    "cpus": _Form(("--cpus", "--cpu")),
    "wall": _Form(("--timeout",)),
    "output": _Form(("--output-limit",), "Bytes of stdout and of stderr in an outcome, head and tail."),
    "files": _Form(("--file",), "A file to put into the workspace, as PATH (under its own name) or NAME=PATH.", True),
    "env": _Form(("--env", "-e"), "A variable for it, as NAME=VALUE, or NAME with its value here.", True),
    "secrets": _Form(
        ("--secret",),
        "A secret that it gets as a variable, by name: one of casemate vault, or CASEMATE_SECRET_DEFAULT_NAME here. "
        "Its value is redacted from all output.",
        True,
    ),
    "namespace": _Form((), "The namespace of its secrets and of its record."),
    "stdin": _Form((), "A file for its standard input, or -. Default: what is piped or redirected into casemate."),
    "output_dir": _Form(("--output",), "A folder for the files the program leaves and the pictures it shows."),
    "workspace": _Form((), "A folder of yours that it works in. Default: an empty one."),
    "allow_read": _Form(
        ("--read",), "A .env file in that folder that it may read and change; these are hidden by default.", True
    ),
    "environment": _Form((), "A virtual environment or a Python interpreter to use, by its path."),
    "policy": _Form((), "A file with the most that is permitted; other options only narrow it."),
    "allowed_domains": _Form(
        ("--allow",),
        "A host that it may reach: example.org, *.example.org or example.org:5432; none by default.",
        True,
    ),
    "allow_local": _Form(
        ("--allow-local",), "A port on this machine's loopback that it may reach, as host.casemate.internal.", True
    ),
    "host_names": _Form(("--host-name",)),
    "allow_origins": _Form(("--allow-origin",)),
    "tools": _Form(
        ("--tool-server",),
        "An MCP server of casemate tools, by name, whose tools it may call. On a terminal you are asked about each "
        "call that the policy does not decide; elsewhere these are denied.",
        True,
    ),
}


def takes(*options: str, of: type | None = None, defaults: bool = True, **forms: str) -> Callable[[F], F]:
    """Add ``options`` of the API as parameters to a command with ``**options``. Those not given are None, or ().

    ``defaults``: show defaults in the help. ``forms``: other help for some. ``of``: another class of definitions."""

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
    about = text or form.help or docs_of(definition)[name].partition(";")[0].replace('"', "")
    default = defaults_of(definition)[name]
    shown = default if defaults and name != "language" else None  # the default language depends on the file's name
    origin = definition.__annotations__[name].__origin__
    many = form.many or get_origin(origin) is tuple
    kind = tuple[str, ...] if many else _kind_of(origin)
    help_text = option_help(about, shown, many=many)
    how = Parameter(name=form.names or None, allow_leading_hyphen=name == "stdin", help=help_text)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=() if many else default if kind is bool else None,
        annotation=Annotated[kind, how],
    )


def option_help(text: str, default: Any, *, many: bool) -> str:
    """The help of an option, with its default."""
    about = text.replace("`", "").rstrip(".")
    if many:
        return f"{about}. May be repeated."
    if not default:
        return f"{about}."
    return f"{about}; {default if isinstance(default, str) else format(default, 'g')} unless given."


def _kind_of(annotation: Any) -> Any:
    if annotation is bool:
        return bool
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds)
    chosen = next((one for one in kinds if one is float or get_origin(one) is Literal), None)
    return (chosen or (int if int in kinds and str not in kinds else str)) | None
