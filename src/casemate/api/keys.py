"""Every key that can be configured: its form, bounds, default and meaning. Pure.

The one table: files and variables are checked by it, errors suggest from it, ``casemate config`` prints by it, and
docs/reference/configuration.md is written from it. What is an option of a call is defined by that.

Annotations here are evaluated at import, for keys are made of them: no ``from __future__ import annotations``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from casemate.api.config_files import named_variables
from casemate.api.options import FilePath, SandboxOptions
from casemate.errors import InvalidArgument
from casemate.model import foreign
from casemate.model.call_options import DAY, USUAL_SECONDS
from casemate.model.limits import LIMIT_BOUNDS, LimitOptions, Limits, format_size, parse_size
from casemate.model.operation import Between, OneOf
from casemate.model.options import ConfigNote, Default, docs_of
from casemate.policy.hosts import MOST_PORT
from casemate.policy.policy import Setting
from casemate.visible import brief

Form = Literal["text", "path", "choice", "whole", "number", "seconds", "size", "flag", "texts", "ports", "in file"]

PREFIX = "CASEMATE_"
WEEK = 7 * DAY


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``name``: as in a file, with a dot below a section; ``form``: ``"in file"`` has no variable;
    ``default``: None is what ``unset`` says; ``low``, ``high``: bounds of numbers; ``definition``:
    where its option is defined."""

    name: str
    form: Form
    default: Any = None
    unset: str = "none"
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    text: str = ""
    definition: type | None = None

    @property
    def says(self) -> str:
        """What it means; read from its definition when it is asked for."""
        return docs_of(self.definition)[self.name.rpartition(".")[2]] if self.definition else self.text

    @property
    def variable(self) -> str | None:
        """The variable that sets it, or None."""
        return None if self.form == "in file" else PREFIX + self.name.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class Alias:
    """A variable of another name for a key. ``unit``: follows a plain number; ``words``: values with another name here,
    None for the default; ``refused``: values that cannot be had, and why."""

    variable: str
    key: str
    unit: str = ""
    words: Mapping[str, str | None] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How ``casemate service`` runs."""

    idle_stop: Annotated[
        float | None, Between(1, WEEK), Default(None), ConfigNote("never; 900 where a command has started it")
    ]
    """Seconds without sessions, runs and requests after which it ends."""
    drain: Annotated[float, Between(0, 3600), Default(10.0)]
    """Seconds that what runs has when the service is told to end."""
    listen: Annotated[tuple[str, ...], Default(())]
    """Addresses besides its socket, as HOST:PORT, for those who have a token."""
    tls_cert: Annotated[str | None, Default(None), ConfigNote(form="path")]
    """The file of a certificate: what listens on TCP then speaks TLS."""
    tls_key: Annotated[str | None, Default(None), ConfigNote(form="path")]
    """The file of its key."""
    plain_http: Annotated[bool, Default(False)]
    """Listen without TLS beyond this machine's loopback."""
    host_names: Annotated[tuple[str, ...], Default(())]
    """Further names by which requests may call it."""
    allow_origins: Annotated[tuple[str, ...], Default(())]
    """Origins of pages from which browsers may ask, as https://example.org."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How ``casemate serve`` runs."""

    toolset: Annotated[Literal["default", "sandboxmcp", "ipybox", "full"], Default("default")]
    """Which tools there are."""
    transport: Annotated[Literal["stdio", "http", "sse"], Default("stdio")]
    """How clients speak to it."""
    host: Annotated[str, Default("127.0.0.1")]
    """The address that it listens at, with http and sse."""
    port: Annotated[int, Between(0, MOST_PORT), Default(8417)]
    """The port there; 0 is any that is free."""
    token_file: Annotated[str | None, Default(None), ConfigNote("one that is said at start", form="path")]
    """A file with the token that clients must send there."""
    plain_http: Annotated[bool, Default(False)]
    """Listen without TLS beyond this machine's loopback."""
    may_approve: Annotated[bool, Default(False)]
    """Whoever uses a client there may approve what its agent asks for."""
    embedded: Annotated[bool, Default(False)]
    """Run programs in its own process, without the service."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Default("warning")]
    """What it writes to standard error."""


def key_of(definition: type, option: str, section: str = "") -> Key:
    """An option as a key, as its annotation says."""
    annotation = definition.__annotations__[option]
    kind, marks = annotation.__origin__, {type(mark): mark for mark in annotation.__metadata__}
    parts = list(get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind])
    for place, part in enumerate(parts):
        if get_origin(part) is Annotated:
            parts[place], marks = part.__origin__, {**marks, **{type(mark): mark for mark in part.__metadata__}}
    note = marks.get(ConfigNote, ConfigNote())
    default = note.default or marks[Default].value
    low, high = marks.get(Between, (None, None))
    choices = next((get_args(part) for part in parts if get_origin(part) is Literal), marks.get(OneOf, OneOf(())).words)
    return Key(
        section + option, cast("Form", note.form) or _form_of(parts), None if default == () else default, note.unset,
        choices, low, high, definition=definition,
    )  # fmt: skip


_PATH = get_args(FilePath)[1]


def _form_of(parts: list[Any]) -> Form:
    """The form of values of any of these types."""
    of_lists = [get_args(part)[0] for part in parts if get_origin(part) in (tuple, Sequence)]
    if any(get_origin(part) is Literal for part in parts):
        return "choice"
    if _PATH in parts:
        return "path"
    if of_lists:
        return "ports" if of_lists == [int] else "texts"
    kinds: dict[Any, Form] = {bool: "flag", int: "whole", float: "seconds", str: "text"}
    return kinds[parts[0]]


def _limit_key(name: str) -> Key:
    form, low, high = LIMIT_BOUNDS[name]
    default, unset = getattr(Limits(), name), "no limit of its own"
    return Key(f"limits.{name}", form, default, unset, low=low, high=high, definition=LimitOptions)


def _options(*names: str) -> Iterator[Key]:
    return (key_of(SandboxOptions, name) for name in names)


def _in_file(name: str, text: str, unset: str = "none") -> Key:
    return Key(name, "in file", unset=unset, text=text)


_POLICY_FILE = "a file with the policy, in place of the keys of this section"
_VAULT = "where secrets are: user (that of casemate vault), memory (variables alone), or a file"
_TIMEOUT = "seconds that `run` and `wrap` let a program run unless an option says so; elsewhere `limits.wall` binds"
POLICY = (
    Key("policy", "path", unset="what this section says", text=_POLICY_FILE),
    *_options("network", "allowed_domains"),
    _in_file("denied_domains", "hosts that they may not reach, whatever else is said"),
    *_options("allow_local"),
    _in_file("requests", "what may be asked of hosts whose requests are seen"),
    _in_file("web", "who is asked in searches"),
    *_options("intercept", "trust", "workspace", "workspace_mode", "allow_read", "isolation"),
    _in_file("host", "commands and files of this machine that agents may ask for"),
    _in_file("previews", "false: servers in sessions are shown to nobody", "true"),
    _in_file("rules", "what is allowed, asked about or denied"),
    _in_file("defaults", "what holds for a kind of request that no rule is about", "as docs/how-to/policy.md says"),
)
LIMITS = tuple(map(_limit_key, LIMIT_BOUNDS))
SANDBOX = (
    Key("timeout", "seconds", USUAL_SECONDS, low=0.01, high=WEEK, text=_TIMEOUT),
    *_options("image", "runtime", "output_dir", "environment", "preload", "approval_timeout"),
    Key("vault", "path", unset="user on the command line, memory in a program of yours", text=_VAULT),
    *_options(
        "audit",
        "audit_sync",
        "audit_anchors",
        "audit_max_age",
        "audit_max_size",
        "namespace",
        "concurrency",
        "package_indexes",
        "tools",
    ),
)
SERVICE = tuple(key_of(ServiceSettings, name, "service.") for name in ServiceSettings.__annotations__)
SERVE = tuple(key_of(ServeSettings, name, "serve.") for name in ServeSettings.__annotations__)

SECTIONS: Mapping[str, tuple[Key, ...]] = {
    "policy": POLICY,
    "limits": LIMITS,
    "sandbox": SANDBOX,
    "service": SERVICE,
    "serve": SERVE,
}
KEYS: Mapping[str, Key] = {key.name: key for keys in SECTIONS.values() for key in keys}
POLICY_KEYS = (*(key.name for key in POLICY if key.name != "policy"), "limits")

ALIASES = (
    Alias("CASEMATE_BACKEND", "isolation", words={"process": "native", "auto": None}),
    Alias("CASEMATE_MAX_CONCURRENT", "concurrency"),
    Alias("CASEMATE_NETWORK", "network", words={"false": "none", "0": "none", "true": "public", "1": "public"}),
    Alias("CASEMATE_MAX_RAM_MB", "limits.memory", unit="MiB"),
    Alias("CASEMATE_MAX_CPU_CORES", "limits.cpus"),
    Alias("CASEMATE_MAX_PROCESSES", "limits.processes"),
    Alias("CASEMATE_SQLITE_PATH", "audit"),
    Alias("CASEMATE_VAULT", "vault", words={"env": "memory"}),
    Alias(
        "CASEMATE_AUDIT",
        "audit",
        words={"sqlite": None},
        refused={"memory": "the record is always a file; give its path, or leave the variable out"},
    ),
)
VARIABLES: Mapping[str, Key] = {key.variable: key for key in KEYS.values() if key.variable}
CONFIG = "CASEMATE_CONFIG"  # names the file


_FLAGS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
WITH_PASSWORDS = "package_indexes"


def from_text(key: Key, text: str) -> Any:
    """The value that a variable's text gives ``key``. Raises ``ValueError`` that says what is wrong with it."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    match key.form:
        case "texts":
            return check_value(key, items)
        case "ports":
            return check_value(key, [_number(int, item, text) for item in items])
        case "whole":
            return check_value(key, _number(int, text, text))
        case "number" | "seconds":
            return check_value(key, _number(float, text, text))
        case "size" if text.isascii() and text.isdigit():
            return check_value(key, int(text))
        case "flag":
            return check_value(key, _FLAGS.get(text.lower(), text))
    return check_value(key, text)


def _number(kind: Callable[[str], Any], item: str, text: str) -> Any:
    try:
        return kind(item)
    except ValueError:
        raise ValueError(f"{brief(text)} is no {'whole ' if kind is int else ''}number") from None


def check_value(key: Key, value: Any) -> Any:
    """``value`` where it is one that ``key`` may have. Raises ``ValueError`` that says what is wrong with it."""
    match key.form:
        case "text" | "path":
            problem = _problem_of_text(value)
        case "choice":
            problem = "" if value in key.choices else f"is not known{_hint(key, value)}"
        case "flag":
            problem = "" if isinstance(value, bool) else "is neither true nor false"
        case "whole" | "number" | "seconds" | "size":
            problem = _problem_of_number(key, value)
        case "texts":
            is_one = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
            problem = "" if is_one else "is no list of texts"
        case "ports":
            problem = "" if isinstance(value, list | tuple) else "is no list of ports"
            wrong = [] if problem else [one for one in value if type(one) is not int or not 1 <= one <= MOST_PORT]
            if wrong:
                value, problem = wrong[0], f"is not a port from 1 to {MOST_PORT}"
        case _:
            problem = ""  # others check it
    if problem:
        raise ValueError(problem if key.name == WITH_PASSWORDS else f"{brief(value)} {problem}")
    return value


def _problem_of_text(value: Any) -> str:
    if not isinstance(value, str):
        return "is no text"
    if "\0" in value:
        return "holds a NUL character"
    return "" if value else "is empty; give a value, or leave it out"


def _hint(key: Key, value: Any) -> str:
    from casemate.model.foreign import suggest

    likely = suggest(value, key.choices) if isinstance(value, str) else ""
    return f"{likely or ';'} choose one of {', '.join(key.choices)}"


def _problem_of_number(key: Key, value: Any) -> str:
    kinds = int if key.form == "whole" else int | float
    if key.form != "size" and (isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value)):
        return "is no whole number" if key.form == "whole" else "is no number"
    number = parse_size(value) if key.form == "size" else value
    low, high = -math.inf if key.low is None else key.low, math.inf if key.high is None else key.high
    if low <= number <= high:
        return ""
    bounds = (format_size(int(one)) if key.form == "size" else f"{one:g}" for one in (low, high))
    return f"is out of range; give {' to '.join(bounds)}"


_ALIASES = {alias.variable: alias for alias in ALIASES}


def settings_in(environ: Mapping[str, str]) -> dict[str, Setting]:
    """The values that variables give, by key, each with the variable that it is from.

    Lists have commas between their items. Raises ``InvalidArgument`` naming the variable: for a bad value, for one that
    casemate does not know, and where two say the same.
    """
    settings: dict[str, Setting] = {}
    variables = [name for name in named_variables(environ) if name != CONFIG]
    _check_known([name for name in variables if name not in VARIABLES and name not in _ALIASES])
    for variable in variables:
        key, value = _read(variable, environ[variable])
        if value is None:
            continue
        if key.name in settings:
            raise InvalidArgument(variable, f"says the same as {settings[key.name].where}; leave one of them out")
        settings[key.name] = Setting(key.name, value, variable)
    return settings


def _check_known(unknown: list[str]) -> None:
    """Raises ``InvalidArgument`` that names all variables that casemate does not know."""
    from casemate.model.foreign import suggest

    known = [*VARIABLES, *_ALIASES, CONFIG]
    problems = [f"is no variable that casemate knows{_use_of(name) or suggest(name, known)}" for name in unknown]
    if problems:
        rest = [f"{name}: {problem}" for name, problem in zip(unknown[1:], problems[1:], strict=True)]
        raise InvalidArgument(
            unknown[0],
            "\n".join([problems[0], *rest]),
            remediation="`casemate config` lists them. CASEMATE_SECRET_* and CASEMATE_INJECT_* are for secrets.",
        )


def _use_of(variable: str) -> str:
    """``"; use CASEMATE_LIMITS_MEMORY here"`` for a variable of another program of this kind; nothing for others."""
    name = variable.partition("_")[2]
    alias = _ALIASES.get(PREFIX + name)
    key = KEYS.get(alias.key if alias else foreign.KEYS.get(name.lower(), name.lower()))
    return f"; use {key.variable} here" if key and key.variable not in (None, variable) else ""


def foreign_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables of sandboxmcp, which nothing here reads, each with what to use instead."""
    names = sorted(name for name in environ if name.startswith("SANDBOXMCP_"))
    return [f"{name} is not read{_use_of(name) or '; see casemate config reference'}" for name in names]


def _read(variable: str, text: str) -> tuple[Key, Any]:
    alias = _ALIASES.get(variable)
    key = KEYS[alias.key] if alias else VARIABLES[variable]
    try:
        return key, _translate(alias, key, text) if alias else from_text(key, text)
    except ValueError as error:
        raise InvalidArgument(variable, str(error)) from None


def _translate(alias: Alias, key: Key, text: str) -> Any:
    if text in alias.refused:
        raise ValueError(f"{text!r}: {alias.refused[text]}")
    if text in alias.words:
        word = alias.words[text]
        return None if word is None else from_text(key, word)
    return from_text(key, text + alias.unit if alias.unit and text.isascii() and text.isdigit() else text)


def aliases_of(name: str) -> Iterator[str]:
    """Other variables of the key ``name``."""
    yield from (one.variable for one in ALIASES if one.key == name and one.variable != KEYS[name].variable)
