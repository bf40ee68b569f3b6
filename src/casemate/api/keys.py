"""Every configuration key: its form, bounds, default and meaning.

Files and variables are checked by this table, errors suggest from it, ``casemate config`` prints it, and
docs/reference/configuration.md is made from it. A key that is an option of a call is defined by that option.

Annotations here are evaluated at import, for keys are made of them: no ``from __future__ import annotations``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from casemate.api.config_files import named_variables
from casemate.errors import InvalidArgument
from casemate.model import foreign
from casemate.model.call_options import DAY
from casemate.model.kinds import FilePath
from casemate.model.limits import LIMIT_BOUNDS, LimitOptions, Limits
from casemate.model.operation import Between, OneOf
from casemate.model.options import ConfigNote, Default, docs_of
from casemate.model.sandbox_options import SandboxOptions
from casemate.policy.hosts import MOST_PORT
from casemate.policy.keys import POLICY_NAMES, SANDBOX_KINDS, SANDBOX_NAMES, FileOptions, bare, problems_in_section
from casemate.policy.policy import Setting
from casemate.visible import brief

Form = Literal["text", "path", "choice", "whole", "number", "seconds", "size", "flag", "texts", "ports", "in file"]

PREFIX = "CASEMATE_"
WEEK = 7 * DAY


@dataclass(frozen=True, slots=True)
class Key:
    name: str  # as in a file, with a dot after the section
    form: Form  # "in file" has no variable
    definition: type  # of its option
    default: Any = None
    unset: str = "none"  # what None means, in words
    choices: tuple[str, ...] = ()
    low: float | None = None  # for numbers, like `high`
    high: float | None = None

    @property
    def option(self) -> str:
        """Its name in its definition."""
        return self.name.rpartition(".")[2]

    @property
    def says(self) -> str:
        """Its meaning, read from its definition on demand."""
        return docs_of(self.definition)[self.option]

    @property
    def variable(self) -> str | None:
        """The variable that sets it, or None."""
        return None if self.form == "in file" else PREFIX + self.name.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class Alias:
    """Another variable for a key."""

    variable: str
    key: str
    unit: str = ""  # of plain numbers
    words: Mapping[str, str | None] = field(default_factory=dict)  # its values to ours; None for the default
    refused: Mapping[str, str] = field(default_factory=dict)  # unsupported values, and why


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How ``casemate service`` runs."""

    idle_stop: Annotated[
        float | None, Between(1, WEEK), Default(None), ConfigNote("never; 900 if a command started it")
    ]
    """Seconds without sessions, runs and requests after which it ends."""
    drain: Annotated[float, Between(0, 3600), Default(10.0)]
    """Seconds that programs have to finish when the service stops."""
    listen: Annotated[tuple[str, ...], Default(())]
    """Addresses in addition to its socket, as HOST:PORT, for clients with a token."""
    tls_cert: Annotated[str | None, Default(None), ConfigNote(form="path")]
    """The file of a certificate; TCP addresses then use TLS."""
    tls_key: Annotated[str | None, Default(None), ConfigNote(form="path")]
    """The file of its key."""
    plain_http: Annotated[bool, Default(False)]
    """Listen without TLS beyond this machine's loopback."""
    host_names: Annotated[tuple[str, ...], Default(())]
    """Other host names that requests may use for it."""
    allow_origins: Annotated[tuple[str, ...], Default(())]
    """Origins of web pages that may call it, as https://example.org."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How ``casemate serve`` runs."""

    toolset: Annotated[Literal["default", "sandboxmcp", "ipybox", "full"], Default("default")]
    """The tools that it offers."""
    transport: Annotated[Literal["stdio", "http", "sse"], Default("stdio")]
    """How clients connect to it."""
    host: Annotated[str, Default("127.0.0.1")]
    """The address that it listens on, with http and sse."""
    port: Annotated[int, Between(0, MOST_PORT), Default(8417)]
    """The port that it listens on; 0 for any free port."""
    token_file: Annotated[str | None, Default(None), ConfigNote("a new token, printed at start", form="path")]
    """A file with the token that clients must send, with http and sse."""
    plain_http: Annotated[bool, Default(False)]
    """Listen without TLS beyond this machine's loopback."""
    may_approve: Annotated[bool, Default(False)]
    """The client's user may approve what its agent asks for."""
    embedded: Annotated[bool, Default(False)]
    """Run programs in its own process, without the service."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Default("warning")]
    """The least severe messages that it writes to standard error."""


def key_of(definition: type, option: str, section: str = "") -> Key:
    """A key from an option's annotation."""
    kind, outer = bare(definition.__annotations__[option])
    parts = [bare(part) for part in (get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,))]
    marks = {type(mark): mark for group in (*(inner for _, inner in parts), outer) for mark in group}
    note, kinds = marks.get(ConfigNote, ConfigNote()), [part for part, _ in parts]
    default = note.default or marks[Default].value
    low, high = marks.get(Between, (None, None))
    choices = next((get_args(part) for part in kinds if get_origin(part) is Literal), marks.get(OneOf, OneOf(())).words)
    return Key(
        section + option, cast("Form", note.form) or _form_of(kinds), definition, None if default == () else default,
        note.unset, choices, low, high,
    )  # fmt: skip


_PATH = get_args(FilePath)[1]


def _form_of(parts: list[Any]) -> Form:
    of_lists = [bare(get_args(part)[0])[0] for part in parts if get_origin(part) in (tuple, Sequence)]
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
    return Key(f"limits.{name}", form, LimitOptions, getattr(Limits(), name), "no limit of its own", low=low, high=high)


def _keys(*names: str) -> tuple[Key, ...]:
    return tuple(key_of(FileOptions if name in FileOptions.__annotations__ else SandboxOptions, name) for name in names)


POLICY = _keys("policy", *POLICY_NAMES)
LIMITS = tuple(map(_limit_key, LIMIT_BOUNDS))
SANDBOX = _keys("timeout", "vault", *SANDBOX_NAMES)
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
FILE_KINDS: Mapping[str, Any] = {
    **FileOptions.__annotations__, **SANDBOX_KINDS, "service": ServiceSettings, "serve": ServeSettings,
}  # fmt: skip

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


def from_text(key: Key, text: str) -> Any:
    """The value of ``key`` in a variable's text. Raises ``ValueError`` with the problem."""
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
        raise ValueError(f"{brief(text)} must be {'an integer' if kind is int else 'a number'}") from None


def check_value(key: Key, value: Any) -> Any:
    """``value``, if ``key`` may have it. Raises ``ValueError`` with the problem."""
    if key.definition is LimitOptions:
        try:
            Limits(**{key.option: value})
        except InvalidArgument as error:
            raise ValueError(error.problem) from None
        return value
    for problem in problems_in_section({key.name: key.definition.__annotations__[key.option]}, (), {key.name: value}):
        raise ValueError(str(problem))
    return value


_ALIASES = {alias.variable: alias for alias in ALIASES}


def settings_in(environ: Mapping[str, str]) -> dict[str, Setting]:
    """The values that variables set, by key, each with its variable.

    Items of lists are separated by commas. Raises ``InvalidArgument`` naming the variable: for a bad value, an unknown
    variable, or two variables of the same key.
    """
    settings: dict[str, Setting] = {}
    variables = [name for name in named_variables(environ) if name != CONFIG]
    _check_known([name for name in variables if name not in VARIABLES and name not in _ALIASES])
    for variable in variables:
        key, value = _read(variable, environ[variable])
        if value is None:
            continue
        if key.name in settings:
            raise InvalidArgument(variable, f"sets the same key as {settings[key.name].where}; leave one of them out")
        settings[key.name] = Setting(key.name, value, variable)
    return settings


def _check_known(unknown: list[str]) -> None:
    from casemate.model.foreign import suggest

    known = [*VARIABLES, *_ALIASES, CONFIG]
    problems = [f"is not a known variable{_use_of(name) or suggest(name, known)}" for name in unknown]
    if problems:
        rest = [f"{name}: {problem}" for name, problem in zip(unknown[1:], problems[1:], strict=True)]
        raise InvalidArgument(
            unknown[0],
            "\n".join([problems[0], *rest]),
            remediation="`casemate config` lists them. CASEMATE_SECRET_* and CASEMATE_INJECT_* are for secrets.",
        )


def _use_of(variable: str) -> str:
    """``"; use CASEMATE_LIMITS_MEMORY here"`` for a variable of a similar program; empty for other variables."""
    name = variable.partition("_")[2]
    alias = _ALIASES.get(PREFIX + name)
    key = KEYS.get(alias.key if alias else foreign.KEYS.get(name.lower(), name.lower()))
    return f"; use {key.variable} here" if key and key.variable not in (None, variable) else ""


def foreign_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables of sandboxmcp, which casemate ignores, each with its replacement."""
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
